"""Generalized advantage estimation (Schulman et al. 2016) with true successors at time limits."""

from __future__ import annotations

import torch
from torch import Tensor

from troop.functional.advantage_kernels import gae_kernel, use_kernel


def gae(
    reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, trace: Tensor, gae_lambda: float
) -> Tensor:
    """Return A_t = delta_t + lambda discount_t trace_t A_{t+1}, all [T, B], with A_T = 0.

    delta_t = r_t + discount_t V(successor of t) - V_t. `trace` is 0 at the last step of an episode, whatever
    ended it, and 1 elsewhere; `discount` is 0 only where the episode terminated. Rows that are not steps
    have the advantage 0 if their reward, discount, value and trace are 0.
    """
    inputs = (reward, discount, value, next_value, trace)
    if use_kernel(*inputs):
        return gae_kernel(inputs, gae_lambda)
    delta = torch.addcmul(reward, discount, next_value).sub_(value)
    decay = (trace * discount).mul_(gae_lambda)
    rows, decays = delta.unbind(0), decay.unbind(0)
    for t in range(len(rows) - 2, -1, -1):
        rows[t].addcmul_(decays[t], rows[t + 1])
    return delta


def with_final_values(values: Tensor, final_values: Tensor, final_index: Tensor) -> Tensor:
    """Return the values of the successors [T, B]: values[1:] [T + 1, B], replaced at `final_index` [K]."""
    successors = values[1:].clone()
    successors.view(-1)[final_index] = final_values
    return successors
