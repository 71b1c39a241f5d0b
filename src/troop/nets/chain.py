"""linear, norm, relu, ..., linear as one step of autograd, for one net or for several of the same shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SMALL = (
    512 * 256
)  # elements of a layer up to which one batched product beats one per net (docs/results/bench.md)


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x W' + b; with a leading axis of nets, each net's rows by its own weights."""
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
    if a.dim() == 2:
        return torch.mm(a, b)
    if a.shape[1] * b.shape[2] <= SMALL or a.device.type != "cpu":
        return torch.bmm(a, b)
    y = a.new_empty(a.shape[0], a.shape[1], b.shape[2])
    for net in range(a.shape[0]):
        torch.mm(a[net], b[net], out=y[net])
    return y


class Chain(torch.autograd.Function):
    """The same products as layer by layer, with a node, some views and some copies less per layer.

    For small nets that is a good part of an update's time on a CPU (docs/results/bench.md).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: bool, *parameters: Tensor) -> Tensor:  # noqa: ANN401
        """[..., B, i] -> [..., B, o] through weight and bias of each layer in turn."""
        layers = len(parameters) // 2
        kept: list[Tensor] = []
        for layer in range(layers - 1):
            kept.append(x)
            x = affine(x, parameters[2 * layer], parameters[2 * layer + 1])
            if norm:
                kept.append(x)
                x, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], None, None, 1e-5)
                kept += [mean, rstd]
            x = x.relu_()
        ctx.layers, ctx.norm = layers, norm
        ctx.save_for_backward(*kept, x, *parameters[::2])
        return affine(x, parameters[-2], parameters[-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradients of the input and of those parameters that want one."""
        kept, wanted, layers = list(ctx.saved_tensors), ctx.needs_input_grad, ctx.layers
        weights = [kept.pop() for _ in range(layers)]  # last layer first
        found = list[Tensor | None]([None] * (2 + 2 * layers))
        gradient, x = gradients[0], kept.pop()
        for layer in reversed(range(layers)):
            if layer < layers - 1:
                gradient = torch.ops.aten.threshold_backward.default(gradient, x, 0)
                if ctx.norm:
                    rstd, mean, before = kept.pop(), kept.pop(), kept.pop()
                    gradient = torch.ops.aten.native_layer_norm_backward.default(
                        gradient, before, before.shape[-1:], mean, rstd, None, None, [True, False, False]
                    )[0]
                x = kept.pop()
            if wanted[2 + 2 * layer]:
                found[2 + 2 * layer], found[3 + 2 * layer] = product(gradient.mT, x), gradient.sum(-2)
            if layer or wanted[0]:
                gradient = product(gradient, weights[layers - 1 - layer])
        found[0] = gradient if wanted[0] else None
        return tuple(found)


def layered(x: Tensor, norm: bool, *parameters: Tensor) -> Tensor:
    """What Chain computes, in plain operations: for autocast and torch.compile, which cannot look inside it."""
    last = len(parameters) // 2 - 1
    for layer in range(last + 1):
        x = x @ parameters[2 * layer].mT + parameters[2 * layer + 1].unsqueeze(-2)
        if layer < last:
            x = torch.relu(torch.layer_norm(x, x.shape[-1:]) if norm else x)
    return x
