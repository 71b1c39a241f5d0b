"""Categorical value distributions (C51): Bellemare, Dabney, Munos 2017."""

from __future__ import annotations

import torch
from torch import Tensor


def mean(probabilities: Tensor, atoms: Tensor) -> Tensor:
    """Return the expected value of distributions [..., K] over `atoms` [K], in float32.

    Not a matrix product: autocast would compute it in bf16, whose 8 bits cannot order two similar critics.
    """
    return (probabilities.float() * atoms).sum(-1)


def bellman_shift(reward: Tensor, discount: Tensor, atoms: Tensor) -> Tensor:
    """Return T z = clip(reward + discount * z, v_min, v_max) for each atom z; [B, K]."""
    # On a CPU these are vectorised; addcmul and clamp with tensors to broadcast are not.
    shifted = (discount.unsqueeze(-1) * atoms).add_(reward.unsqueeze(-1))
    return shifted.maximum(atoms[0]).minimum(atoms[-1])


def project(probabilities: Tensor, shifted: Tensor, atoms: Tensor) -> Tensor:
    """Distribute the mass at `shifted` [B, K] linearly to the two neighbouring atoms (algorithm 1); [B, K].

    The fraction above the lower atom goes to the upper one. On an exact hit that fraction is 0 and all mass
    stays, so there is no special case (the reference code once doubled the mass there). Rows keep their sum.
    """
    assert probabilities.shape == shifted.shape and shifted.shape[-1] == atoms.shape[0]
    count = atoms.shape[0]
    position = (shifted - atoms[0]).mul_((count - 1) / (atoms[-1] - atoms[0])).clamp_(0, count - 1)
    lower = position.floor()
    upper_mass = position.sub_(lower).mul_(probabilities)
    index = lower.long().clamp_min_(0)  # NaN converts to the lowest integer: the row becomes NaN, no crash
    # One extra column: the upper neighbour of the last atom, which only ever receives zeros.
    projected = probabilities.new_zeros(probabilities.shape[0], count + 1)
    projected.scatter_add_(1, index, probabilities - upper_mass)
    projected[:, 1:].scatter_add_(1, index, upper_mass)
    return projected[:, :count]


def select_lower_mean(probabilities: Tensor, shifted: Tensor) -> Tensor:
    """Return per row the distribution with the lowest target mean, [C, B, K] -> [B, K]; last critic on ties.

    The mean of a projection equals the mean of the shifted atoms, so selecting before projecting selects the
    same distribution and projects once.
    """
    means = (probabilities * shifted).sum(-1)  # [C, B]
    if probabilities.shape[0] == 2:
        return torch.where((means[0] < means[1]).unsqueeze(-1), probabilities[0], probabilities[1])
    last = probabilities.shape[0] - 1 - means.flip(0).argmin(0)
    return probabilities.gather(0, last.view(1, -1, 1).expand(1, -1, probabilities.shape[-1])).squeeze(0)


def entropy(probabilities: Tensor) -> Tensor:
    """Return -sum_k p_k log p_k of distributions [..., K], with 0 log 0 = 0."""
    terms: Tensor = torch.special.xlogy(probabilities, probabilities)
    return -terms.sum(-1)


def binary_entropy(probabilities: Tensor) -> Tensor:
    """Return the mean over atoms of -p_k log p_k - (1 - p_k) log(1 - p_k), with 0 log 0 = 0."""
    rest = (1 - probabilities).clamp_min(0)  # rounding may make the mass of an atom exceed 1
    terms: Tensor = torch.special.xlogy(probabilities, probabilities) + torch.special.xlogy(rest, rest)
    return -terms.mean(-1)


def cross_entropy(target: Tensor, logits: Tensor) -> Tensor:
    """Return -sum_k target_k log softmax(logits)_k in float32; [C or 1, B, K], [C, B, K] -> [C, B]."""
    return -(logits.float().log_softmax(-1) * target).sum(-1)


def binary_cross_entropy(target: Tensor, logits: Tensor) -> Tensor:
    """Return the mean over atoms of -t log p - (1 - t) log(1 - p), p = softmax(logits); shapes as above.

    For targets whose mass is below one (PQL-D). 1 - p is bounded away from 0, where its log has no gradient.
    """
    log_p = logits.float().log_softmax(-1)
    log_not_p = torch.log1p(-log_p.exp().clamp_max(1 - 1e-6))
    return -torch.lerp(log_not_p, log_p, target).mean(-1)
