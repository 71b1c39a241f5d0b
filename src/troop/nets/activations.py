"""Activation functions of hidden layers."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Activation = Literal["relu", "elu", "silu", "tanh"]
VECTOR_WIDTH = 32  # torch computes two vector registers of up to 16 numbers at a time


def activate(x: Tensor, activation: Activation) -> Tensor:
    """Apply ReLU or ELU in place, or SiLU or tanh."""
    if activation == "silu":
        return functional.silu(x)
    if activation == "tanh":
        return tanh(x)
    return (functional.relu if activation == "relu" else functional.elu)(x, inplace=True)


def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent, computed on a CPU as 2 sigmoid(2 x) - 1.

    There torch's tanh takes several times longer than its sigmoid, and was a fifth of an update of PPO. The
    results differ by at most 3e-7. Layers whose width is no multiple of VECTOR_WIDTH use torch's: rows
    of theirs would differ by a rounding error between batches of different sizes.
    """
    fast = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    if not fast or x.shape[-1] % VECTOR_WIDTH or torch.compiler.is_exporting():
        return x.tanh()
    z = torch.mul(x, 2).sigmoid_()
    if torch.is_grad_enabled() and x.requires_grad:  # the backward pass needs z
        return z.mul(2).sub_(1)
    return z.mul_(2).sub_(1)
