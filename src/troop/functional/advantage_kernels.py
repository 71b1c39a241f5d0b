"""The recursions of GAE and V-trace as loops that numba compiles, for large batches on the host.

A recursion over T steps is T small tensor operations, which cost more than the memory that they read. The
loops read every input once. Small batches do not use them: importing numba takes longer than they would save.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

MIN_ELEMENTS = 1 << 16  # of [T, B], from which on the compiled loops are used

Array = np.ndarray[Any, Any]


def use_kernel(*inputs: Tensor) -> bool:
    """Whether the tensors [T, B] are large, on the host and without gradients."""
    first = inputs[0]
    if first.numel() < MIN_ELEMENTS or torch.compiler.is_compiling():
        return False
    return all(x.is_cpu and x.dtype == first.dtype and not x.requires_grad for x in inputs)


@functools.cache
def compiled(function: Callable[..., None]) -> Callable[..., None]:
    """Compile a loop; numba keeps the machine code on disk."""
    from numba import njit

    jitted: Callable[..., None] = njit(cache=True, nogil=True)(function)
    return jitted


def gae_kernel(inputs: tuple[Tensor, ...], gae_lambda: float) -> Tensor:
    """Return the advantages for reward, discount, value, next_value and trace."""
    advantage = torch.empty_like(inputs[0], memory_format=torch.contiguous_format)
    arrays = [x.numpy() for x in inputs]
    last = np.zeros(advantage.shape[1], arrays[0].dtype)
    compiled(gae_loop)(*arrays, last.dtype.type(gae_lambda), last, advantage.numpy())
    return advantage


def vtrace_kernel(inputs: tuple[Tensor, ...], limits: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Return targets and advantages for rho, reward, discount, value, next_value and trace.

    `limits` are rho_bar, c_bar, pg_rho_bar and lambda.
    """
    target, advantage = (torch.empty_like(inputs[0], memory_format=torch.contiguous_format) for _ in range(2))
    arrays = [x.numpy() for x in inputs]
    last = np.zeros(target.shape[1], arrays[0].dtype)
    numbers = [last.dtype.type(x) for x in limits]
    compiled(vtrace_loop)(*arrays, *numbers, last, target.numpy(), advantage.numpy())
    return target, advantage


def gae_loop(
    reward: Array,
    discount: Array,
    value: Array,
    next_value: Array,
    trace: Array,
    gae_lambda: Any,  # noqa: ANN401 - a number of the arrays' type
    last: Array,
    advantage: Array,
) -> None:
    """Write A_t = delta_t + lambda discount_t trace_t A_{t+1}; `last` [B] is zero."""
    for t in range(reward.shape[0] - 1, -1, -1):
        for b in range(reward.shape[1]):
            decay = discount[t, b] * trace[t, b] * gae_lambda
            delta = reward[t, b] + discount[t, b] * next_value[t, b] - value[t, b]
            last[b] = delta + decay * last[b]
            advantage[t, b] = last[b]


def vtrace_loop(
    rho: Array,
    reward: Array,
    discount: Array,
    value: Array,
    next_value: Array,
    trace: Array,
    rho_bar: Any,  # noqa: ANN401 - numbers of the arrays' type
    c_bar: Any,  # noqa: ANN401
    pg_rho_bar: Any,  # noqa: ANN401
    trace_lambda: Any,  # noqa: ANN401
    last: Array,
    target: Array,
    advantage: Array,
) -> None:
    """Write v_t and A_t; `last` [B] is zero and holds v - V of the step after t."""
    for t in range(reward.shape[0] - 1, -1, -1):
        for b in range(reward.shape[1]):
            ratio = rho[t, b]
            pg_rho = ratio if ratio < pg_rho_bar else pg_rho_bar  # min() would not become vector instructions
            clipped_rho = ratio if ratio < rho_bar else rho_bar
            c = trace_lambda * (ratio if ratio < c_bar else c_bar)
            td_error = reward[t, b] + discount[t, b] * next_value[t, b] - value[t, b]
            carried = discount[t, b] * trace[t, b] * last[b]
            advantage[t, b] = pg_rho * (td_error + carried)
            last[b] = clipped_rho * td_error + c * carried
            target[t, b] = value[t, b] + last[b]
