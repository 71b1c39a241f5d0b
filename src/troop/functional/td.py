"""Scalar Bellman targets; `discount` already carries gamma^k and is 0 after the world's end."""

from __future__ import annotations

from torch import Tensor


def target(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """Reward + discount * V(next), all [B] (or next_value [C, B])."""
    assert reward.shape == discount.shape == next_value.shape[-1:]
    return reward + discount * next_value


def clipped_double(values: Tensor) -> Tensor:
    """Element-wise minimum over critics, [C, B] -> [B] (Fujimoto et al. 2018, eq. 10)."""
    return values.amin(0)
