"""n-step returns within sequences, and priorities of sequences (Kapturowski et al. 2019)."""

from __future__ import annotations

import torch
from torch import Tensor


def n_step_returns(reward: Tensor, discount: Tensor, ended: Tensor, next_value: Tensor, n: int) -> Tensor:
    """Return sum_k gamma^k r_{t+k} + gamma^m V(successor of t + m - 1), all [T, B], for m up to n steps.

    `next_value` is V of the successor of each step. Returns are shorter than n steps where the episode ends
    (`ended`, also at a time limit) and at the end of the sequence: they use the last value there is.
    `discount` is gamma, 0 where the episode terminated.
    """
    returns = torch.addcmul(reward, discount, next_value)
    for _ in range(n - 1):
        following = torch.where(ended[:-1], next_value[:-1], returns[1:])
        returns = torch.addcmul(reward, discount, torch.cat((following, next_value[-1:])))
    return returns


def sequence_priority(td_error: Tensor, learned: Tensor, eta: float) -> Tensor:
    """Return eta max_t |td_error| + (1 - eta) mean_t |td_error| over the steps `learned` [T, B], as [B].

    0 for a sequence without such a step.
    """
    error = torch.where(learned, td_error.abs(), 0.0)
    mean = error.sum(0) / learned.sum(0).clamp_min(1)
    return eta * error.amax(0) + (1 - eta) * mean
