"""linear, norm, activation, ..., linear as one step of autograd, for one net or several of the same shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from troop.nets.products import affine, apart, product

Activation = Literal["relu", "elu", "silu"]


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


def forth(
    x: Tensor, norm: bool, activation: Activation, parameters: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """What the layers say of x, and what `back` will want to know of how."""
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
    kept.append(x)
    return affine(x, parameters[-2], parameters[-1]), kept


def back(
    gradient: Tensor,
    norm: bool,
    activation: Activation,
    parameters: Sequence[Tensor],
    kept: list[Tensor],
    places: Sequence[Tensor | None],
    through_first: bool,
) -> Tensor:
    """Fill the places of the gradients that are wanted; the gradient of the input, if it is."""
    each, last = (4 if norm else 2), len(parameters) - 2
    x = kept.pop()
    for first in range(last, -1, -each):
        if first < last:
            before = kept.pop() if activation == "silu" else None
            gradient = through(gradient, activation, before, x)
            if norm:
                rstd, mean, normalized, before = kept.pop(), kept.pop(), kept.pop(), kept.pop()
                if (place := places[first + 2]) is not None:
                    torch.sum(gradient * normalized, -2, out=place)
                if (place := places[first + 3]) is not None:
                    torch.sum(gradient, -2, out=place)
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
        if (place := places[first]) is not None:
            product(gradient.mT, x, place)
        if (place := places[first + 1]) is not None:
            torch.sum(gradient, -2, out=place)
        if first or through_first:
            gradient = product(gradient, parameters[first])
    return gradient


class Chain(torch.autograd.Function):
    """The same products as layer by layer, with a node, some views and some copies less per layer.

    For small nets that is a good part of an update's time on a CPU (docs/results/bench.md). Large ones go
    through it one by one there: what the products of one write is still in the cache when it is read.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: bool, activation: Activation, *parameters: Tensor) -> Tensor:  # noqa: ANN401
        """[..., B, i] -> [..., B, o]; parameters as in MLP.layers."""
        ctx.norm, ctx.activation, ctx.count = norm, activation, len(parameters)
        ctx.apart = apart(x, parameters)
        if ctx.apart:
            nets = [forth(x[n], norm, activation, [p[n] for p in parameters]) for n in range(len(x))]
            y, kept = torch.stack([y for y, _ in nets]), [each for _, kept in nets for each in kept]
        else:
            y, kept = forth(x, norm, activation, parameters)
        ctx.save_for_backward(*parameters, *kept)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradients of the input and of those parameters that want one."""
        saved, (through_first, _, _, *wanted) = list(ctx.saved_tensors), ctx.needs_input_grad
        parameters, kept = saved[: ctx.count], saved[ctx.count :]
        places = [torch.empty_like(p) if want else None for p, want in zip(parameters, wanted, strict=True)]
        gradient, how = gradients[0], (ctx.norm, ctx.activation)
        if ctx.apart:
            each, found = len(kept) // len(gradient), []
            for n in range(len(gradient) - 1, -1, -1):  # the last one's is warm
                own, out = [p[n] for p in parameters], [None if p is None else p[n] for p in places]
                found.append(back(gradient[n], *how, own, kept[each * n :], out, through_first))
                del kept[each * n :]
            gradient = torch.stack(found[::-1]) if through_first else gradient
        else:
            gradient = back(gradient, *how, parameters, kept, places, through_first)
        return gradient if through_first else None, None, None, *places


def layered(x: Tensor, norm: bool, activation: Activation, *parameters: Tensor) -> Tensor:
    """What Chain computes, in plain operations that autocast and torch.compile can look into."""
    if apart(x, parameters):
        nets = zip(x, *parameters, strict=True)
        return torch.stack([layered(own, norm, activation, *parts) for own, *parts in nets])
    each, last = (4 if norm else 2), len(parameters) - 2
    for first in range(0, last + 1, each):
        # Not "+ bias": a compiler would make addmm of it, which writes the bias to memory first, row by row.
        x = x @ parameters[first].mT - (-parameters[first + 1]).unsqueeze(-2)
        if first < last:
            x = scaled(x, *parameters[first + 2 : first + 4])[0] if norm else x
            x = activated(x, activation)
    return x
