"""The tanh-squashed Gaussian (Haarnoja et al. 2018, appendix C)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional


def sample(mean: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
    """Return reparameterised actions [B, A] and their log-densities [B]."""
    noise = torch.randn_like(mean)
    u = torch.addcmul(mean, log_std.exp(), noise)
    return u.tanh(), log_prob(u, noise, log_std)


def log_prob(u: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
    """Return log pi(tanh u) [B] where u = mean + std * noise, all [B, A] (equation 21).

    log(1 - tanh(u)^2) is computed as 2 (log 2 - u - softplus(-2 u)), which is exact for large |u|, where the
    difference underflows.
    """
    log_derivative = 2 * (math.log(2) - u - functional.softplus(-2 * u))
    log_density = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    return (log_density - log_derivative).sum(-1)
