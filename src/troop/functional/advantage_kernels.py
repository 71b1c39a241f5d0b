"""The recursions of GAE and V-trace as compiled loops, for large batches on the host.

A recursion over T steps is T small tensor operations, which cost more than the memory that they read. The
loops read every input once. Small batches do not use them: importing numba takes longer than they would save.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

MIN_ELEMENTS = 1 << 16  # of [T, B], from which on the compiled loops are used


def use_kernel(*inputs: Tensor) -> bool:
    """Whether the tensors [T, B] are large, of float32, on the host and without gradients."""
    first = inputs[0]
    if first.numel() < MIN_ELEMENTS or torch.compiler.is_compiling():
        return False
    return all(x.is_cpu and x.dtype == torch.float32 and not x.requires_grad for x in inputs)


def gae_kernel(inputs: tuple[Tensor, ...], gae_lambda: float) -> Tensor:
    """Return the advantages for reward, discount, value, next_value and trace."""
    from troop.functional.advantage_loops import gae_loop

    advantage = torch.empty_like(inputs[0], memory_format=torch.contiguous_format)
    reward, discount, value, next_value, trace = (x.numpy() for x in inputs)
    last = np.zeros(advantage.shape[1], np.float32)
    gae_loop(reward, discount, value, next_value, trace, np.float32(gae_lambda), last, advantage.numpy())
    return advantage


def vtrace_kernel(inputs: tuple[Tensor, ...], limits: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Return targets and advantages for log_ratio, reward, discount, value, next_value and trace.

    `limits` are rho_bar, c_bar, pg_rho_bar and lambda.
    """
    from troop.functional.advantage_loops import vtrace_loop

    target, advantage = (torch.empty_like(inputs[0], memory_format=torch.contiguous_format) for _ in range(2))
    log_ratio, reward, discount, value, next_value, trace = (x.numpy() for x in inputs)
    last = np.zeros(target.shape[1], np.float32)
    rho_bar, c_bar, pg_rho_bar, trace_lambda = (np.float32(x) for x in limits)
    numbers = (rho_bar, c_bar, pg_rho_bar, trace_lambda)
    out = (last, target.numpy(), advantage.numpy())
    vtrace_loop(log_ratio, reward, discount, value, next_value, trace, numbers, *out)
    return target, advantage
