"""Initial priorities: the |n-step TD error| of new rows, from the values a policy computes while acting."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from troop.core.batch import NStep


@dataclass(frozen=True, slots=True)
class StepValues:
    """Time-ordered rows [K, B] of B streams, with the policy's value estimates."""

    q: Tensor  # Q(obs, action) of the action taken
    value: Tensor  # V(obs): the value of the best action
    next_value: Tensor  # V of the true successor where it is not the next row; NaN elsewhere
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    closing: Tensor


def n_step_td_error(steps: StepValues, rows: int, experience: NStep) -> Tensor:
    """Return |R^(k) + gamma^k V(successor) - Q| of the first `rows` rows, [rows, B]; 0 for closing rows.

    Windows end as in kernels.n_step_returns: at episode ends and before closing rows, from whose
    observation they bootstrap. At least n rows must follow the first `rows`, or a closing row must be last.
    """
    n, gamma = experience.n, experience.gamma
    ended = steps.terminated | steps.truncated
    final = steps.terminated if experience.bootstrap_on_truncation else ended
    following = torch.cat((steps.value[1:], torch.zeros_like(steps.value[:1])))
    successor = torch.where(steps.next_value.isnan(), following, steps.next_value)
    target, active = torch.zeros_like(steps.q[:rows]), ~steps.closing[:rows]
    for k in range(n):
        window = slice(k, k + rows)
        closed = _rows(steps.closing, window)
        target += torch.where(active & closed, gamma**k * _rows(steps.value, window), 0.0)
        active = active & ~closed
        target += torch.where(active, gamma**k * _rows(steps.reward, window), 0.0)
        last = active & _rows(ended, window) if k < n - 1 else active
        bootstraps = last & ~_rows(final, window)
        target += torch.where(bootstraps, gamma ** (k + 1) * _rows(successor, window), 0.0)
        active = active & ~last
    error = (target - steps.q[:rows]).abs_().masked_fill_(steps.closing[:rows], 0.0)
    return error.nan_to_num_(0.0, 0.0, 0.0)  # a network that returns NaN must not corrupt the replay


def _rows(x: Tensor, window: slice) -> Tensor:
    """Return x[window], with the last row repeated where x is too short; no window is active there."""
    missing = window.stop - len(x)
    if missing <= 0:
        return x[window]
    return torch.cat((x[window], x[-1:].expand(min(missing, window.stop - window.start), -1)))
