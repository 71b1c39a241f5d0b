"""Frozen copies and the ways they follow."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

from troop.algorithms.optim.flat import flat, flatten

M = TypeVar("M", bound=nn.Module)


def frozen(module: M) -> M:
    """A copy that never receives gradients, laid out flat."""
    made = copy.deepcopy(module).requires_grad_(False)
    flatten(made, gradients=False)
    return made


@torch.no_grad()
def soft_update(target: nn.Module, online: nn.Module, tau: float) -> None:
    """Target <- target + tau (online - target), parameters only: buffers are not averaged. Both are flat."""
    flat(target).lerp_(flat(online), tau)


@torch.no_grad()
def hard_update(target: nn.Module, online: nn.Module) -> None:
    """Target <- online, parameters only. Both are flat."""
    flat(target).copy_(flat(online))
