"""Activation functions of hidden layers."""

from __future__ import annotations

from typing import Any, Literal

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
    if torch.compiler.is_compiling():
        return 2 * torch.sigmoid(2 * x) - 1
    if torch.is_grad_enabled() and x.requires_grad:
        y: Tensor = _Tanh.apply(x)  # type: ignore[no-untyped-call]
        return y
    return _tanh(x)


def _tanh(x: Tensor) -> Tensor:
    return torch.mul(x, 2).sigmoid_().mul_(2).sub_(1)


class _Tanh(torch.autograd.Function):
    """`_tanh` with the derivative of tanh, which needs the result only."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """Return the hyperbolic tangent."""
        return _tanh(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ANN401
        """Keep the result."""
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ANN401
        """Return grad (1 - y^2)."""
        (y,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(grad, y)  # type: ignore[no-any-return]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:  # noqa: ANN401
        """Return tangent (1 - y^2)."""
        y: Tensor = ctx.saved_tensors[0]
        return tangent * (1 - y * y)
