"""Gaussians squashed into (-1, 1) by tanh (Haarnoja et al. 2018, appendix C)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional


def draw(mean: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
    """An action [B, A] of each row's Gaussian, by a path that gradients follow, and its log-density [B]."""
    noise = torch.randn_like(mean)
    u = torch.addcmul(mean, log_std.exp(), noise)
    return u.tanh(), log_prob(u, noise, log_std)


def log_prob(u: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
    """The log-density pi(tanh u) [B] where u = mean + std * noise, all [B, A].

    The density of u over the slope of tanh, whose log is 2 (log 2 - u - softplus(-2 u)): exact however far
    out u lies, where 1 - tanh(u)^2 is 0 in floating point and an epsilon beside it would invent a number.
    """
    value_and_grad = 2 * (math.log(2) - u - functional.softplus(-2 * u))
    density = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    return (density - value_and_grad).sum(-1)
