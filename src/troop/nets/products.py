"""Matrix products of one net or of several side by side, each in the way that is fastest where it lies."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

SMALL = 512 * 256  # elements of a layer up to which one batched product beats one per net
NARROW = 32  # columns up to which a CPU is twice as fast with both matrices turned
# (both: docs/results/bench.md)


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


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Products of two matrices, or of two stacks of them; in the place given, if any."""
    if b.shape[-1] <= NARROW < a.shape[-2] and a.device.type == "cpu":
        turned = torch.matmul(b.mT, a.mT).mT
        return turned if out is None else out.copy_(turned)
    if a.dim() == 2:
        return torch.mm(a, b, out=out)
    if a.shape[1] * b.shape[2] <= SMALL or a.device.type != "cpu":
        return torch.bmm(a, b, out=out)
    y = a.new_empty(a.shape[0], a.shape[1], b.shape[2]) if out is None else out
    for net in range(a.shape[0]):
        torch.mm(a[net], b[net], out=y[net])
    return y


def apart(x: Tensor, parameters: Sequence[Tensor]) -> bool:
    """Whether each net goes through its layers on its own."""
    if parameters[0].dim() == 2 or x.device.type != "cpu":
        return False
    return x.shape[1] * max(bias.shape[1] for bias in parameters[1::2]) > SMALL
