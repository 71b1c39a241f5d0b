"""n-step windows over time-ordered rows, cut where an episode ends."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from troop.replay.streams import CLOSING, TERMINATED, TRUNCATED


@lru_cache(maxsize=8)
def _powers(gamma: float, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return (gamma ** torch.arange(n + 1, dtype=torch.float64, device=device)).to(dtype)


def powers(gamma: float, n: int, like: Tensor) -> Tensor:
    """1, gamma, ..., gamma^n, each rounded once."""
    return _powers(gamma, n, like.dtype, like.device)


def cut(
    reward: Tensor, flags: Tensor, gamma: float, bootstrap_at_limits: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum windows [B, n] up to their episode's end: (reward [B], discount [B], steps taken [B]).

    A row counts if no earlier row of the window ended the episode and it is not a closing row itself.
    The successor of the window is the row `steps` after its start; `discount` is gamma^steps, or 0 if
    the last counted row ended the world.
    """
    rows, n = reward.shape
    final = TERMINATED if bootstrap_at_limits else TERMINATED | TRUNCATED
    if n == 1:
        ended = (flags[:, 0] & final).bool()
        discount = torch.full_like(reward[:, 0], gamma).masked_fill_(ended, 0.0)
        return reward[:, 0], discount, torch.ones(rows, dtype=torch.int64, device=reward.device)
    discounts = powers(gamma, n, reward)
    stop = (flags & CLOSING).bool()
    stop[:, 1:] |= (flags[:, :-1] & (TERMINATED | TRUNCATED)).bool()
    counted = stop.logical_not_().to(torch.uint8).cumprod(1, dtype=torch.int64)  # [B, n]
    steps = counted.sum(1)
    total = (reward * counted * discounts[:n]).sum(1)
    ended = ((flags & final).bool() & counted.bool()).any(1)
    return total, discounts[steps].masked_fill_(ended, 0.0), steps
