"""Plain multi-layer perceptrons."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn


class ReLUChain(torch.autograd.Function):
    """linear, relu, linear, ..., linear as one step of autograd, over weights and biases in turn.

    The same products as layer by layer, but with a node, a few views and a copy less per layer: for small
    nets that is a third of an update's time on a CPU (docs/results/learner.md).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:  # noqa: ANN401 - autograd's context
        """[B, i] -> [B, o]."""
        hidden, last = [x], len(parameters) // 2 - 1
        for layer in range(last):
            x = torch.addmm(parameters[2 * layer + 1], x, parameters[2 * layer].t()).relu_()
            hidden.append(x)
        ctx.save_for_backward(*hidden, *parameters[::2])
        return torch.addmm(parameters[-1], x, parameters[-2].t())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradients of the input and of those parameters that want one."""
        saved, wanted = ctx.saved_tensors, ctx.needs_input_grad
        layers = len(saved) // 2
        gradient, found = gradients[0], list[Tensor | None]([None] * (2 * layers + 1))
        for layer in reversed(range(layers)):
            before, weight = saved[layer], saved[layers + layer]
            if wanted[2 * layer + 1]:
                found[2 * layer + 1], found[2 * layer + 2] = gradient.t() @ before, gradient.sum(0)
            if layer or wanted[0]:
                gradient = gradient @ weight
            if layer:
                gradient = torch.ops.aten.threshold_backward(gradient, before, 0)
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
        self.layer_norm = layer_norm

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs] -> [B, outputs]."""
        if self.layer_norm or torch.is_autocast_enabled(x.device.type):
            y: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        else:
            y = ReLUChain.apply(x, *self.parameters())  # type: ignore[no-untyped-call]
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
