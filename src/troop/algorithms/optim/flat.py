"""Contiguous parameters: all parameters of a module in one tensor."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

_VECTORS: WeakKeyDictionary[nn.Module, Tensor] = WeakKeyDictionary()  # results of flat_parameters


def flatten_parameters(module: nn.Module, gradients: bool = True) -> nn.Parameter:
    """Move the module's parameters, and their gradients, into one flat tensor and return it.

    The module keeps its own parameters as views of the flat tensor, so an optimizer step, a norm or a Polyak
    update is one operation instead of one per layer. Gradients must be written in place: replacing `.grad`
    would detach the views.
    """
    parameters = list(module.parameters())
    flat = nn.Parameter(torch.cat([parameter.detach().reshape(-1) for parameter in parameters]))
    grad = torch.zeros_like(flat) if gradients else None
    flat.grad = grad
    start = 0
    for parameter in parameters:
        end = start + parameter.numel()
        parameter.data = flat.data[start:end].view_as(parameter)
        if grad is not None:
            parameter.grad = grad[start:end].view_as(parameter)
        start = end
    return flat


def flat_parameters(module: nn.Module) -> Tensor:
    """Return the flat tensor of a module that was flattened, as a vector that shares its memory."""
    first = next(module.parameters())
    known = _VECTORS.get(module)
    if known is not None and known.data_ptr() == first.data_ptr():
        return known
    total = sum(parameter.numel() for parameter in module.parameters())
    vector = _VECTORS[module] = first.data.as_strided((total,), (1,), first.storage_offset())
    return vector
