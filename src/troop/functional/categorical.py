"""Categorical value distributions (C51): Bellemare, Dabney, Munos 2017, "A Distributional Perspective"."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def mean(probabilities: Tensor, atoms: Tensor) -> Tensor:
    """Expected value of distributions [..., K] over `atoms` [K]."""
    return probabilities @ atoms


def shift(reward: Tensor, discount: Tensor, atoms: Tensor) -> Tensor:
    """Where the Bellman operator moves each atom, clipped to the support; [B, K]."""
    moved = torch.addcmul(reward.unsqueeze(-1), discount.unsqueeze(-1), atoms)
    return moved.clamp_(atoms[0], atoms[-1])


def project(probabilities: Tensor, moved: Tensor, atoms: Tensor) -> Tensor:
    """Share the mass at `moved` [B, K] among the two nearest atoms each, in proportion; rows keep their sum.

    The fraction above the lower atom goes to the upper one. On an exact hit that fraction is 0, so the
    whole mass stays and there is no special case to get wrong (the reference once doubled it there).
    """
    assert probabilities.shape == moved.shape and moved.shape[-1] == atoms.shape[0]
    atoms_count = atoms.shape[0]
    place = (moved - atoms[0]).mul_((atoms_count - 1) / (atoms[-1] - atoms[0])).clamp_(0, atoms_count - 1)
    lower = place.long().clamp_min_(0)  # NaN becomes the lowest integer: the row turns NaN, not the program
    upper_mass = place.sub_(lower).mul_(probabilities)
    # One column more than atoms: the top atom's upper neighbour, which only ever receives zeros.
    projected = probabilities.new_zeros(probabilities.shape[0], atoms_count + 1)
    projected.scatter_add_(1, lower, probabilities - upper_mass)
    projected.scatter_add_(1, lower.add_(1), upper_mass)
    return projected[:, :atoms_count]


def select_lower_mean(probabilities: Tensor, moved: Tensor) -> Tensor:
    """Per row the distribution with the lowest target mean, [C, B, K] -> [B, K]; on a tie the last critic's.

    The mean of a projection is the mean of the moved atoms under it, so choosing before projecting
    chooses the same row and projects once.
    """
    means = (probabilities * moved).sum(-1)  # [C, B]
    if probabilities.shape[0] == 2:
        return torch.where((means[0] < means[1]).unsqueeze(-1), probabilities[0], probabilities[1])
    last = probabilities.shape[0] - 1 - means.flip(0).argmin(0)
    return probabilities.gather(0, last.view(1, -1, 1).expand(1, -1, probabilities.shape[-1])).squeeze(0)


def entropy(probabilities: Tensor) -> Tensor:
    """-sum_k p_k log p_k of distributions [..., K]; 0 log 0 is 0."""
    terms: Tensor = torch.special.xlogy(probabilities, probabilities)
    return -terms.sum(-1)


def cross_entropy(target: Tensor, logits: Tensor) -> Tensor:
    """-sum_k target_k log softmax(logits)_k; [C or 1, B, K], [C, B, K] -> [C, B], in float32 always."""
    flat = target.expand_as(logits).reshape(-1, logits.shape[-1])
    loss = functional.cross_entropy(logits.float().reshape(flat.shape), flat, reduction="none")
    return loss.view(logits.shape[:-1])


def binary_cross_entropy(target: Tensor, logits: Tensor) -> Tensor:
    """Mean over atoms of -t log p - (1 - t) log(1 - p), p = softmax(logits); shapes as in `cross_entropy`.

    For targets whose mass is less than one. 1 - p is kept off zero, where its log has no gradient left.
    """
    log_p = logits.float().log_softmax(-1)
    rest = torch.log1p(-log_p.exp().clamp_max(1 - 1e-6))
    return -torch.lerp(rest, log_p, target).mean(-1)
