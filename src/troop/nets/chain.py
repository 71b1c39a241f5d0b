"""linear, norm, activation, ..., linear as one step of autograd, for one net or several of the same shape."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

Activation = Literal["relu", "elu", "silu"]

SMALL = 512 * 256  # elements of a layer up to which one batched product beats one per net
NARROW = (
    32  # columns up to which a CPU is twice as fast with both matrices turned (both: docs/results/bench.md)
)


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """W x + b; with a leading axis of nets, each net's rows by its own weights."""
    if weight.dim() == 2:
        return torch.addmm(bias, x, weight.t())
    if x.shape[1] * weight.shape[1] <= SMALL or x.device.type != "cpu":
        return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
    y = x.new_empty(x.shape[0], x.shape[1], weight.shape[1])
    for net in range(x.shape[0]):
        torch.addmm(bias[net], x[net], weight[net].t(), out=y[net])
    return y


def product(a: Tensor, b: Tensor) -> Tensor:
    """Products of two matrices, or of two stacks of them."""
    if b.shape[-1] <= NARROW < a.shape[-2] and a.device.type == "cpu":
        return torch.matmul(b.mT, a.mT).mT
    if a.dim() == 2:
        return torch.mm(a, b)
    if a.shape[1] * b.shape[2] <= SMALL or a.device.type != "cpu":
        return torch.bmm(a, b)
    y = a.new_empty(a.shape[0], a.shape[1], b.shape[2])
    for net in range(a.shape[0]):
        torch.mm(a[net], b[net], out=y[net])
    return y


def scaled(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LayerNorm with weights, of one net or of each of several: (answer, normalized, mean, 1 / std)."""
    normalized, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], None, None, 1e-5)
    return torch.addcmul(bias.unsqueeze(-2), normalized, weight.unsqueeze(-2)), normalized, mean, rstd


def activated(x: Tensor, activation: Activation, inplace: bool = False) -> Tensor:
    """ReLU, ELU or SiLU (which never is in place)."""
    if activation == "silu":
        return functional.silu(x)
    return (functional.relu if activation == "relu" else functional.elu)(x, inplace=inplace)


def through(gradient: Tensor, activation: Activation, before: Tensor | None, after: Tensor) -> Tensor:
    """The gradient before an activation, in the place of that after it; SiLU alone needs what came in."""
    ops, place = torch.ops.aten, {"grad_input": gradient}
    if activation == "silu":
        return ops.silu_backward.grad_input(gradient, before, **place)  # type: ignore[no-any-return]
    if activation == "elu":
        return ops.elu_backward.grad_input(gradient, 1, 1, 1, True, after, **place)  # type: ignore[no-any-return]
    return ops.threshold_backward.grad_input(gradient, after, 0, **place)  # type: ignore[no-any-return]


class Chain(torch.autograd.Function):
    """The same products as layer by layer, with a node, some views and some copies less per layer.

    For small nets that is a good part of an update's time on a CPU (docs/results/bench.md).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: bool, activation: Activation, *parameters: Tensor) -> Tensor:  # noqa: ANN401
        """[..., B, i] -> [..., B, o]; parameters as in MLP.layers."""
        each = 4 if norm else 2
        kept: list[Tensor] = []
        for first in range(0, len(parameters) - 2, each):
            weight, bias, *scales = parameters[first : first + each]
            kept.append(x)
            x = affine(x, weight, bias)
            if norm:
                kept.append(x)
                x, *rest = scaled(x, *scales)
                kept += rest
            if activation == "silu":
                kept.append(x)
            x = activated(x, activation, inplace=True)
        ctx.each, ctx.last, ctx.activation = each, len(parameters) - 2, activation
        ctx.save_for_backward(*parameters, *kept, x)
        return affine(x, parameters[-2], parameters[-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradients of the input and of those parameters that want one."""
        saved, wanted, each, last = list(ctx.saved_tensors), ctx.needs_input_grad, ctx.each, ctx.last
        parameters, kept = saved[: last + 2], saved[last + 2 :]
        found = list[Tensor | None]([None] * (5 + last))
        gradient, x = gradients[0], kept.pop()
        for first in range(last, -1, -each):
            if first < last:
                before = kept.pop() if ctx.activation == "silu" else None
                gradient = through(gradient, ctx.activation, before, x)
                if each == 4:
                    rstd, mean, normalized, before = kept.pop(), kept.pop(), kept.pop(), kept.pop()
                    if wanted[5 + first]:
                        found[5 + first], found[6 + first] = (gradient * normalized).sum(-2), gradient.sum(-2)
                    gradient = torch.ops.aten.native_layer_norm_backward.default(
                        gradient.mul_(parameters[first + 2].unsqueeze(-2)),
                        before,
                        before.shape[-1:],
                        mean,
                        rstd,
                        None,
                        None,
                        [True, False, False],
                    )[0]
                x = kept.pop()
            if wanted[3 + first]:
                found[3 + first], found[4 + first] = product(gradient.mT, x), gradient.sum(-2)
            if first or wanted[0]:
                gradient = product(gradient, parameters[first])
        found[0] = gradient if wanted[0] else None
        return tuple(found)


def layered(x: Tensor, norm: bool, activation: Activation, *parameters: Tensor) -> Tensor:
    """What Chain computes, in plain operations that autocast and torch.compile can look into."""
    each, last = (4 if norm else 2), len(parameters) - 2
    for first in range(0, last + 1, each):
        x = x @ parameters[first].mT + parameters[first + 1].unsqueeze(-2)
        if first < last:
            x = scaled(x, *parameters[first + 2 : first + 4])[0] if norm else x
            x = activated(x, activation)
    return x
