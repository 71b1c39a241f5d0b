"""Plain multi-layer perceptrons."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn


class ReLUChain(torch.autograd.Function):
    """[linear, norm, relu] ..., linear as one step of autograd; norms only if their weights are given.

    The same products as layer by layer, but with a node, a few views and a copy less per layer: for small
    nets that is a good part of an update's time on a CPU (docs/results/bench.md).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, layers: int, *parameters: Tensor) -> Tensor:  # noqa: ANN401
        """[B, i] -> [B, o]; parameters are weight and bias, and of a norm weight and bias, per layer."""
        each = (len(parameters) - 2) // max(layers - 1, 1)  # 2, or 4 with norms
        kept: list[Tensor] = []
        for layer in range(layers - 1):
            weight, bias, *norm = parameters[each * layer : each * (layer + 1)]
            kept.append(x)
            x = torch.addmm(bias, x, weight.t())
            if norm:
                kept.append(x)
                x, mean, rstd = torch.native_layer_norm(x, x.shape[1:], norm[0], norm[1], 1e-5)
                kept += [mean, rstd]
            x = x.relu_()
        ctx.layers, ctx.each, ctx.kept = layers, each, len(kept) + 1
        ctx.save_for_backward(*kept, x, *parameters)
        return torch.addmm(parameters[-1], x, parameters[-2].t())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradients of the input and of those parameters that want one."""
        saved, wanted, each = list(ctx.saved_tensors), ctx.needs_input_grad, ctx.each
        kept, parameters = saved[: ctx.kept], saved[ctx.kept :]
        found = list[Tensor | None]([None] * (2 + len(parameters)))
        gradient, x = gradients[0], kept.pop()
        for layer in reversed(range(ctx.layers)):
            first = each * layer
            if layer < ctx.layers - 1:
                gradient = torch.ops.aten.threshold_backward(gradient, x, 0)
                if each == 4:
                    rstd, mean, before = kept.pop(), kept.pop(), kept.pop()
                    mask = [True, wanted[4 + first], wanted[5 + first]]
                    gradient, found[4 + first], found[5 + first] = torch.ops.aten.native_layer_norm_backward(
                        gradient,
                        before,
                        before.shape[1:],
                        mean,
                        rstd,
                        *parameters[first + 2 : first + 4],
                        mask,
                    )
                x = kept.pop()
            if wanted[2 + first]:
                found[2 + first], found[3 + first] = gradient.t() @ x, gradient.sum(0)
            if layer or wanted[0]:
                gradient = gradient @ parameters[first]
        found[0] = gradient if wanted[0] else None
        return tuple(found)


class MLP(nn.Sequential):
    """Linear, LayerNorm if asked for, ReLU in turn, ending linear; default init but for `head_std`."""

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        head_std: float | None = None,
        layer_norm: bool = False,
    ) -> None:
        widths = [inputs, *hidden]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers.append(nn.Linear(before, after))
            if layer_norm:
                layers.append(nn.LayerNorm(after))
            layers.append(nn.ReLU(inplace=True))
        head = nn.Linear(widths[-1], outputs)
        if head_std is not None:
            nn.init.normal_(head.weight, 0.0, head_std)
            nn.init.zeros_(head.bias)
        super().__init__(*layers, head)
        self.linears = len(widths)

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs] -> [B, outputs]."""
        if torch.is_autocast_enabled(x.device.type):  # which would not reach inside the chain
            y: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        else:
            y = ReLUChain.apply(x, self.linears, *self.parameters())  # type: ignore[no-untyped-call]
        return y


class DeterministicActor(nn.Module):
    """Observation to an action in [-1, 1] by tanh."""

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        head_std: float = 0.01,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.net = MLP(inputs, hidden, outputs, head_std, layer_norm)

    def forward(self, obs: Tensor) -> Tensor:
        """[B, inputs] -> [B, outputs]."""
        action: Tensor = self.net(obs).tanh()
        return action
