"""What a SimbaV2 net computes, as one step of autograd, for one net or for several of the same shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from troop.nets.products import affine, product

SHIFT = 3.0  # appended to the inputs, so that their length is not lost when they are put on the sphere
EPS = 1e-8


def length(x: Tensor) -> Tensor:
    """Of each row, never 0; [..., 1]."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.clamp_min_(EPS)


def back(gradient: Tensor, y: Tensor, length: Tensor) -> Tensor:
    """The gradient of rows before they were put on the sphere as `y`: nothing pulls along y itself."""
    along = (gradient * y).sum(-1, keepdim=True)
    return torch.addcmul(gradient, y, along, value=-1).div_(length)


class Sphere(torch.autograd.Function):
    """The same products as `rolled`, with some nodes, views and copies less for each.

    Parameters are kernel and scale in turn; the last kernel has a bias instead.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:  # noqa: ANN401
        """[..., B, i] -> [..., B, o]."""
        kernels, scales = parameters[::2], [scale.unsqueeze(-2) for scale in parameters[1:-1:2]]
        x = functional.pad(x, (0, 1), value=SHIFT)
        size = length(x)
        kept = [x.div_(size), size]
        before = product(x, kernels[0].mT)
        y = before * scales[0]
        size = length(y)
        kept += [before, size, y.div_(size)]
        for first in range(1, len(kernels) - 2, 2):
            before = product(y, kernels[first].mT)
            inner = (before * scales[first]).relu_().add_(EPS)
            u = product(inner, kernels[first + 1].mT)
            short = length(u)
            y = torch.lerp(y, u.div_(short), scales[first + 1])
            size = length(y)
            kept += [before, inner, u, short, size, y.div_(size)]
        before = product(y, kernels[-2].mT)
        y = before * scales[-1]
        ctx.save_for_backward(*parameters, *kept, before, y)
        return affine(y, kernels[-1], parameters[-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradients of the input and of those parameters that want one: all or none."""
        wanted, count = ctx.needs_input_grad, len(ctx.needs_input_grad) - 1
        parameters, kept = ctx.saved_tensors[:count], list(ctx.saved_tensors[count:])
        found = list[Tensor | None]([None] * count)

        def dense(place: int, gradient: Tensor, came: Tensor, before: Tensor | None = None) -> Tensor:
            """The gradient in front of kernel and scale number `place`; theirs are noted."""
            if before is not None:
                if wanted[1]:
                    found[place + 1] = (gradient * before).sum(-2)
                gradient = gradient * parameters[place + 1].unsqueeze(-2)
            if wanted[1]:
                found[place] = product(gradient.mT, came)
            return product(gradient, parameters[place]) if place or wanted[0] else gradient

        gradient, y, before = gradients[0], kept.pop(), kept.pop()
        found[-1] = gradient.sum(-2) if wanted[1] else None
        gradient = dense(count - 2, gradient, y)
        y = kept.pop()
        gradient = dense(count - 4, gradient, y, before)
        for place in range(count - 8, 0, -4):
            size, short, u, inner, before = (kept.pop() for _ in range(5))
            gradient, y = back(gradient, y, size), kept.pop()
            if wanted[1]:
                found[place + 3] = (gradient * (u - y)).sum(-2)
            pulled = gradient * parameters[place + 3].unsqueeze(-2)
            gradient = gradient - pulled
            pulled = dense(place + 2, back(pulled, u, short), inner)
            pulled = torch.ops.aten.threshold_backward.default(pulled, inner, EPS)
            gradient += dense(place, pulled, y, before)
        size, before, first, x = kept.pop(), kept.pop(), kept.pop(), kept.pop()
        gradient = dense(0, back(gradient, y, size), x, before)
        return back(gradient, x, first)[..., :-1] if wanted[0] else None, *found


def unit(x: Tensor) -> Tensor:
    """Each row at length one."""
    return functional.normalize(x, dim=-1, eps=EPS)


def rolled(x: Tensor, *parameters: Tensor) -> Tensor:
    """What Sphere computes, in plain operations that autocast and torch.compile can look into."""
    kernels, scales = parameters[::2], [scale.unsqueeze(-2) for scale in parameters[1:-1:2]]
    x = unit(functional.pad(x, (0, 1), value=SHIFT))
    x = unit((x @ kernels[0].mT) * scales[0])
    for first in range(1, len(kernels) - 2, 2):
        y = ((x @ kernels[first].mT) * scales[first]).relu() + EPS
        x = unit(x + scales[first + 1] * (unit(y @ kernels[first + 1].mT) - x))
    return ((x @ kernels[-2].mT) * scales[-1]) @ kernels[-1].mT + parameters[-1].unsqueeze(-2)
