"""Plain multi-layer perceptrons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from troop.nets.chain import Activation, Chain, layered


class MLP(nn.Module):
    """Linear, LayerNorm if asked for, activation, in turn, ending linear; PyTorch's default init.

    With `copies`, that many independent nets side by side: [copies, B, i] -> [copies, B, o].
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        layer_norm: bool = False,
        copies: int | None = None,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        self.inputs, self.layer_norm, self.activation = inputs, layer_norm, activation
        self.layers = nn.ParameterList()  # weight and bias in turn, each followed by those of its norm
        front = () if copies is None else (copies,)
        for before, after in pairwise([inputs, *hidden, outputs]):
            bound = 1 / math.sqrt(before)
            if len(self.layers) and layer_norm:
                self.layers.append(nn.Parameter(torch.ones(*front, before)))
                self.layers.append(nn.Parameter(torch.zeros(*front, before)))
            self.layers.append(nn.Parameter(torch.empty(*front, after, before).uniform_(-bound, bound)))
            self.layers.append(nn.Parameter(torch.empty(*front, after).uniform_(-bound, bound)))

        self.parts = tuple(self.layers)  # the same parameters, without asking a container each time

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs] -> [B, outputs], or stacks of them."""
        if torch.is_autocast_enabled(x.device.type) or torch.compiler.is_compiling():
            return layered(x, self.layer_norm, self.activation, *self.parts)
        y: Tensor = Chain.apply(x, self.layer_norm, self.activation, *self.parts)  # type: ignore[no-untyped-call]
        return y

    def start(self, head_std: float) -> None:
        """Let the last layer start near zero, or at it."""
        nn.init.normal_(self.layers[-2], 0.0, head_std)
        nn.init.zeros_(self.layers[-1])

    def project(self) -> None:
        """Nothing: these weights may be of any length."""
