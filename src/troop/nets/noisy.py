"""Noisy layers: Fortunato et al. 2018, "Noisy Networks for Exploration", with factorised noise.

Noise is an argument: whoever calls draws it, so nothing depends on which forward came before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

Noise = list[tuple[Tensor, Tensor]]
"""f(e_in), f(e_out) of each noisy layer in turn: [i], [o] for all rows alike, or [B, i], [B, o] by row."""


def factorised_noise(count: int, like: Tensor, rows: int | None = None) -> Tensor:
    """f(e) = sign(e) sqrt|e| of Gaussian e; [count] or [rows, count]."""
    e = torch.randn((count,) if rows is None else (rows, count), device=like.device, dtype=like.dtype)
    return e.abs().sqrt_().copysign_(e)


class NoisyLinear(nn.Module):
    """y = (mu_w + sigma_w * f(e_out) f(e_in)^T) x + mu_b + sigma_b * f(e_out); noise off: mu_w x + mu_b."""

    def __init__(self, inputs: int, outputs: int, sigma0: float) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.mu_weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.mu_bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.sigma_weight = nn.Parameter(torch.full((outputs, inputs), sigma0 * bound))
        self.sigma_bias = nn.Parameter(torch.full((outputs,), sigma0 * bound))

    def draw(self, rows: int | None = None) -> tuple[Tensor, Tensor]:
        """Fresh noise: one for all rows, or one for each of `rows`."""
        outputs, inputs = self.mu_weight.shape
        return factorised_noise(inputs, self.mu_weight, rows), factorised_noise(outputs, self.mu_weight, rows)

    def forward(self, x: Tensor, noise: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """[B, inputs] -> [B, outputs]."""
        if noise is None:
            return functional.linear(x, self.mu_weight, self.mu_bias)
        enters, leaves = noise
        bias = torch.addcmul(self.mu_bias, self.sigma_bias, leaves)
        if enters.dim() == 1:
            # One noise for all rows: one product with the noisy weights instead of two with their parts.
            weight = torch.addcmul(self.mu_weight, self.sigma_weight * enters, leaves.unsqueeze(1))
            return functional.linear(x, weight, bias)
        # A noise of rank one need not be written out: W_r x_r = f(e_out) * (sigma_w (f(e_in) * x_r)).
        spread = functional.linear(x * enters, self.sigma_weight)
        return torch.addcmul(bias, spread, leaves) + functional.linear(x, self.mu_weight)


class NoisyMLP(nn.Module):
    """Noisy linear, LayerNorm if asked for, and ReLU in turn, ending linear."""

    def __init__(
        self, inputs: int, hidden: Sequence[int], outputs: int, sigma0: float, layer_norm: bool = False
    ) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in hidden) if layer_norm else None
        sizes = pairwise([inputs, *hidden, outputs])
        self.layers = nn.ModuleList(NoisyLinear(before, after, sigma0) for before, after in sizes)

    def draw(self, rows: int | None = None) -> Noise:
        """Fresh noise for every layer: one for all rows, or one for each of `rows`."""
        return [layer.draw(rows) for layer in self.layers]  # type: ignore[operator]

    def forward(self, x: Tensor, noise: Noise | None = None) -> Tensor:
        """[B, inputs] -> [B, outputs]; no noise at all where none is given."""
        last = len(self.layers) - 1
        for place, layer in enumerate(self.layers):
            x = layer(x, None if noise is None else noise[place])
            if place < last:
                x = (x if self.norms is None else self.norms[place](x)).relu_()
        return x


def scale_noise(noise: Noise, rate: Tensor) -> Noise:
    """Noise drawn row by row, each row's times its `rate` [B]; 0 leaves the means alone."""
    column = rate.unsqueeze(-1)
    return [(enters, leaves * column) for enters, leaves in noise]
