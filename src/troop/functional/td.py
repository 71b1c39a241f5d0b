"""Scalar temporal-difference targets and losses; `discount` is gamma^k, 0 after termination."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def target(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """Return reward + discount * next_value; reward and discount [B], next_value [B] or [C, B]."""
    assert reward.shape == discount.shape == next_value.shape[-1:]
    return reward + discount * next_value


def clipped_double(values: Tensor) -> Tensor:
    """Return the minimum over critics, [C, B] -> [B] (Fujimoto et al. 2018, eq. 10)."""
    return values.amin(0)


def select_action(values: Tensor, action: Tensor) -> Tensor:
    """Return the entries of one action per row: [B, A], [B] -> [B], or [B, A, K], [B] -> [B, K]."""
    index = action.view(-1, 1, *(1,) * (values.dim() - 2))
    return values.gather(1, index.expand(-1, 1, *values.shape[2:])).squeeze(1)


def greedy(q: Tensor) -> tuple[Tensor, Tensor]:
    """Return max_a Q [B] and the action [B] that has it, for q [B, A].

    `q.max(1)` starts torch's threads even for a few rows, which takes milliseconds while other programs use
    the cores.
    """
    action = q.argmax(1)
    return select_action(q, action), action


def double_q(online_q: Tensor, target_q: Tensor) -> Tensor:
    """Return Q'(s, argmax_a Q(s, a)), [B, A] twice -> [B] (van Hasselt et al. 2016, eq. 4)."""
    return select_action(target_q, online_q.argmax(1))


def epsilon_greedy(greedy: Tensor, actions: int, epsilon: Tensor) -> Tensor:
    """Replace each greedy action [B] by a uniformly random one with its row's probability `epsilon` [B]."""
    rows = len(greedy)
    uniform = torch.randint(actions, (rows,), device=greedy.device)
    return torch.where(torch.rand(rows, device=greedy.device) < epsilon, uniform, greedy)


def huber(value: Tensor, target: Tensor) -> Tensor:
    """Return the Huber loss with threshold 1, whose gradient is at most 1; [B] -> [B]."""
    return functional.huber_loss(value, target, reduction="none")


def half_squared(value: Tensor, target: Tensor) -> Tensor:
    """Return half the squared error, [B] -> [B]."""
    return functional.mse_loss(value, target, reduction="none").mul(0.5)
