"""clip_gradient: the identity, with a clipped gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class ClipGradient(torch.autograd.Function):
    """Identity in the forward pass; clamps each element of the gradient in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bound: float) -> Tensor:  # noqa: ANN401
        """Return x."""
        ctx.bound = bound
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        """Clamp the gradient to [-bound, bound]."""
        return gradients[0].clamp(-ctx.bound, ctx.bound), None


def clip_gradient(x: Tensor, bound: float) -> Tensor:
    """Return x; gradients that flow back through it are clamped to [-bound, bound] element-wise."""
    y: Tensor = ClipGradient.apply(x, bound)  # type: ignore[no-untyped-call]
    return y
