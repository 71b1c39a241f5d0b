"""Multi-layer perceptrons, single or as an ensemble of independent networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from troop.nets.activations import Activation, activate

# Elements of a layer's output up to which one batched product beats one product per network on a CPU
# (docs/explanation/results/benchmarks.md).
BATCHED_PRODUCT_LIMIT = 512 * 256
# Rows per thread of the blocks into which larger inputs are divided on a CPU: the activations of a block stay
# in the cache from one operation to the next. PPO's update of 32,768 rows takes a tenth less time.
BLOCK_ROWS = 512
MIN_BLOCKS = 4  # below as many blocks the whole input is not slower


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x W^T + b for [B, i], or per network for stacks [N, B, i], [N, o, i], [N, o]."""
    if torch.compiler.is_compiling():
        # "+ bias" would compile to addmm, which first writes the broadcast bias to memory.
        return x @ weight.mT - (-bias).unsqueeze(-2)
    if weight.dim() == 2:
        return functional.linear(x, weight, bias)
    return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return LayerNorm with affine parameters, which may have a leading axis of networks."""
    if torch.compiler.is_compiling():
        normalized = functional.layer_norm(x, x.shape[-1:])
        return torch.addcmul(bias.unsqueeze(-2), normalized, weight.unsqueeze(-2))
    if weight.dim() == 1:
        return functional.layer_norm(x, x.shape[-1:], weight, bias)
    networks = zip(x, weight, bias, strict=True)  # the affine part within the norm is faster than on its own
    return torch.stack([functional.layer_norm(own, own.shape[-1:], *affine) for own, *affine in networks])


def forward_layers(x: Tensor, norm: bool, activation: Activation, *parameters: Tensor) -> Tensor:
    """Apply the layers [weight, bias, (norm weight, norm bias)] * n, weight, bias to x [..., B, i]."""
    if _large_ensemble(x, parameters):  # one network at a time: its activations stay in the cache
        networks = zip(x, *parameters, strict=True)
        return torch.stack([forward_layers(own, norm, activation, *parts) for own, *parts in networks])
    if rows := _block_rows(x):
        blocks = torch.split(x, rows, dim=-2)
        return torch.cat([forward_layers(block, norm, activation, *parameters) for block in blocks], dim=-2)
    per_layer, last = (4 if norm else 2), len(parameters) - 2
    for first in range(0, last, per_layer):
        x = linear(x, parameters[first], parameters[first + 1])
        if norm:
            x = layer_norm(x, parameters[first + 2], parameters[first + 3])
        x = activate(x, activation)
    return linear(x, parameters[-2], parameters[-1])


def _large_ensemble(x: Tensor, parameters: Sequence[Tensor]) -> bool:
    if parameters[0].dim() == 2 or x.device.type != "cpu":
        return False
    widest = max(bias.shape[1] for bias in parameters[1::2])
    return x.shape[1] * widest > BATCHED_PRODUCT_LIMIT


def _block_rows(x: Tensor) -> int:
    """Return the number of rows that are computed at a time; 0 for all."""
    if x.device.type != "cpu" or x.dim() < 2 or torch.compiler.is_compiling():
        return 0
    rows = BLOCK_ROWS * torch.get_num_threads()
    return rows if x.shape[-2] > MIN_BLOCKS * rows else 0


class MLP(nn.Module):
    """Linear, optional LayerNorm and activation per hidden layer, linear output; PyTorch's default init.

    With `copies`, that many independent networks: [copies, B, i] -> [copies, B, o].
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
        self.layers = nn.ParameterList()  # weight and bias in turn, each pair followed by those of its norm
        ensemble = () if copies is None else (copies,)
        for fan_in, fan_out in pairwise([inputs, *hidden, outputs]):
            bound = 1 / math.sqrt(fan_in)
            if len(self.layers) and layer_norm:
                self.layers.append(nn.Parameter(torch.ones(*ensemble, fan_in)))
                self.layers.append(nn.Parameter(torch.zeros(*ensemble, fan_in)))
            self.layers.append(nn.Parameter(torch.empty(*ensemble, fan_out, fan_in).uniform_(-bound, bound)))
            self.layers.append(nn.Parameter(torch.empty(*ensemble, fan_out).uniform_(-bound, bound)))
        self._parameters_in_order = tuple(self.layers)  # iterating over a ParameterList is slow

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs] -> [B, outputs], or stacks of both."""
        return forward_layers(x, self.layer_norm, self.activation, *self._parameters_in_order)

    def init_output(self, std: float) -> None:
        """Draw the output layer's weights from N(0, std^2) and zero its bias."""
        nn.init.normal_(self.layers[-2], 0.0, std)
        nn.init.zeros_(self.layers[-1])

    def init_orthogonal(self, output_gain: float, gain: float = math.sqrt(2)) -> None:
        """Draw orthogonal weights with these gains and zero all biases (the details of PPO)."""
        weights = [layer for layer in self.layers if layer.dim() == 2]
        for weight in weights[:-1]:
            nn.init.orthogonal_(weight, gain)
        nn.init.orthogonal_(weights[-1], output_gain)
        for index, layer in enumerate(self.layers):
            if layer.dim() == 1 and (not self.layer_norm or index % 4 == 1 or index == len(self.layers) - 1):
                nn.init.zeros_(layer)

    def project(self) -> None:
        """Do nothing: an MLP's weights are unconstrained."""
