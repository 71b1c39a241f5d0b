"""All parameters of a module in one piece of memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def flatten(module: nn.Module, gradients: bool = True) -> nn.Parameter:
    """Lay the module's parameters, and their gradients, end to end; the one tensor that is all of them.

    The module keeps its own parameters as views, so it works as before, while an optimizer step, a norm
    or a soft update is one operation instead of one per layer. Whoever steps must write the gradient in
    place: the views are only valid as long as nobody replaces them.
    """
    own = list(module.parameters())
    whole = nn.Parameter(torch.cat([parameter.detach().reshape(-1) for parameter in own]))
    grad = torch.zeros_like(whole) if gradients else None
    whole.grad = grad
    place = 0
    for parameter in own:
        count = parameter.numel()
        parameter.data = whole.data[place : place + count].view_as(parameter)
        if grad is not None:
            parameter.grad = grad[place : place + count].view_as(parameter)
        place += count
    return whole


def flat(module: nn.Module) -> Tensor:
    """The memory of a module that was flattened, as one vector."""
    own = list(module.parameters())
    first, total = own[0], sum(parameter.numel() for parameter in own)
    return first.data.as_strided((total,), (1,), first.storage_offset())
