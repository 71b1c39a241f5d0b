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


def entropy(probabilities: Tensor) -> Tensor:
    """-sum_k p_k log p_k of distributions [..., K]; 0 log 0 is 0."""
    terms: Tensor = torch.special.xlogy(probabilities, probabilities)
    return -terms.sum(-1)


def cross_entropy(target: Tensor, logits: Tensor) -> Tensor:
    """-sum_k target_k log softmax(logits)_k; [C or 1, B, K], [C, B, K] -> [C, B], in float32 always."""
    flat = target.expand_as(logits).reshape(-1, logits.shape[-1])
    loss = functional.cross_entropy(logits.float().reshape(flat.shape), flat, reduction="none")
    return loss.view(logits.shape[:-1])
