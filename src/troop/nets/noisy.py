"""Noisy networks: Fortunato et al. 2018, "Noisy Networks for Exploration", with factorised Gaussian noise.

Noise is an argument of `forward` and drawn by the caller, so no hidden state connects two forward passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

Noise = list[tuple[Tensor, Tensor]]
"""f(eps_in), f(eps_out) of each noisy layer: [i], [o] shared by all rows, or [B, i], [B, o] per row."""


def factorised_noise(count: int, like: Tensor, rows: int | None = None) -> Tensor:
    """Return f(eps) = sign(eps) sqrt|eps| of Gaussian eps; [count] or [rows, count] (equation 11)."""
    eps = torch.randn((count,) if rows is None else (rows, count), device=like.device, dtype=like.dtype)
    return eps.abs().sqrt_().copysign_(eps)


def scale_noise(noise: Noise, scale: Tensor) -> Noise:
    """Multiply per-row noise by `scale` [B]; 0 leaves only the mean weights."""
    column = scale.unsqueeze(-1)
    return [(noise_in, noise_out * column) for noise_in, noise_out in noise]


class NoisyLinear(nn.Module):
    """y = (mu_w + sigma_w * f(eps_out) f(eps_in)^T) x + mu_b + sigma_b * f(eps_out) (equations 9 to 11).

    Without noise, y = mu_w x + mu_b.
    """

    def __init__(self, inputs: int, outputs: int, sigma0: float) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.mu_weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.mu_bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.sigma_weight = nn.Parameter(torch.full((outputs, inputs), sigma0 * bound))
        self.sigma_bias = nn.Parameter(torch.full((outputs,), sigma0 * bound))

    def sample_noise(self, rows: int | None = None) -> tuple[Tensor, Tensor]:
        """Draw noise shared by all rows, or one sample for each of `rows`."""
        outputs, inputs = self.mu_weight.shape
        return (
            factorised_noise(inputs, self.mu_weight, rows),
            factorised_noise(outputs, self.mu_weight, rows),
        )

    def forward(self, x: Tensor, noise: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """[B, inputs] -> [B, outputs]."""
        if noise is None:
            return functional.linear(x, self.mu_weight, self.mu_bias)
        noise_in, noise_out = noise
        bias = torch.addcmul(self.mu_bias, self.sigma_bias, noise_out)
        if noise_in.dim() == 1:
            # Shared noise: one product with the noisy weights instead of two.
            weight = torch.addcmul(self.mu_weight, self.sigma_weight * noise_in, noise_out.unsqueeze(1))
            return functional.linear(x, weight, bias)
        # Per-row noise has rank one: W_r x_r = f(eps_out) * (sigma_w (f(eps_in) * x_r)).
        perturbation = functional.linear(x * noise_in, self.sigma_weight)
        return torch.addcmul(bias, perturbation, noise_out) + functional.linear(x, self.mu_weight)


class NoisyMLP(nn.Module):
    """Noisy linear, optional LayerNorm and ReLU per hidden layer, then a noisy linear output."""

    def __init__(
        self, inputs: int, hidden: Sequence[int], outputs: int, sigma0: float, layer_norm: bool = False
    ) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in hidden) if layer_norm else None
        sizes = pairwise([inputs, *hidden, outputs])
        self.layers = nn.ModuleList(NoisyLinear(fan_in, fan_out, sigma0) for fan_in, fan_out in sizes)

    def sample_noise(self, rows: int | None = None) -> Noise:
        """Draw noise for every layer, shared by all rows or one sample for each of `rows`."""
        return [layer.sample_noise(rows) for layer in self.layers]  # type: ignore[operator]

    def forward(self, x: Tensor, noise: Noise | None = None) -> Tensor:
        """[B, inputs] -> [B, outputs]; without noise the mean weights are used."""
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            x = layer(x, None if noise is None else noise[index])
            if index < last:
                x = (x if self.norms is None else self.norms[index](x)).relu_()
        return x
