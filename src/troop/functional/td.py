"""Scalar Bellman targets; `discount` already carries gamma^k and is 0 after the world's end."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def target(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """Reward + discount * V(next), all [B] (or next_value [C, B])."""
    assert reward.shape == discount.shape == next_value.shape[-1:]
    return reward + discount * next_value


def clipped_double(values: Tensor) -> Tensor:
    """Element-wise minimum over critics, [C, B] -> [B] (Fujimoto et al. 2018, eq. 10)."""
    return values.amin(0)


def chosen(values: Tensor, action: Tensor) -> Tensor:
    """What the values say of one action a row: [B, A], [B] -> [B], or [B, A, K], [B] -> [B, K]."""
    place = action.view(-1, 1, *(1,) * (values.dim() - 2))
    return values.gather(1, place.expand(-1, 1, *values.shape[2:])).squeeze(1)


def double_q(chooser: Tensor, judge: Tensor) -> Tensor:
    """The judge's value of the chooser's best action, [B, A] twice -> [B] (van Hasselt 2016, eq. 4)."""
    return chosen(judge, chooser.argmax(1))


def huber(value: Tensor, target: Tensor) -> Tensor:
    """Half the squared error up to 1, linear beyond, so that no error pulls by more than 1; [B] -> [B]."""
    return functional.huber_loss(value, target, reduction="none")


def half_squared(value: Tensor, target: Tensor) -> Tensor:
    """Half the squared error, [B] -> [B]."""
    return functional.mse_loss(value, target, reduction="none").mul(0.5)
