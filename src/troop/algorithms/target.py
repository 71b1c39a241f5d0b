"""Frozen copies and the ways they follow."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def frozen(module: M) -> M:
    """A copy that never receives gradients."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def soft_update(target: nn.Module, online: nn.Module, tau: float) -> None:
    """target <- target + tau (online - target), parameters only: buffers are not averaged."""
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)
