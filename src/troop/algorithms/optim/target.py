"""Target networks: frozen copies and their updates."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

from troop.algorithms.optim.flat import flat_parameters, flatten_parameters

M = TypeVar("M", bound=nn.Module)


def frozen_copy(module: M) -> M:
    """Return a copy with flat parameters that never receive gradients."""
    target = copy.deepcopy(module).requires_grad_(False)
    flatten_parameters(target, gradients=False)
    return target


@torch.no_grad()
def polyak_update(target: nn.Module, online: nn.Module, tau: float) -> None:
    """Set target <- target + tau (online - target), for parameters only; both modules are flat."""
    flat_parameters(target).lerp_(flat_parameters(online), tau)


@torch.no_grad()
def copy_parameters(target: nn.Module, online: nn.Module) -> None:
    """Set target <- online, for parameters only; both modules are flat."""
    flat_parameters(target).copy_(flat_parameters(online))
