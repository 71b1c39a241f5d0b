"""A loss and its gradient as one function, which a compiler can take as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

Told = tuple[Any, ...]  # what a loss tells beside itself: tensors, or None where there is nothing to tell
Slope = Callable[..., tuple[Sequence[Tensor], Tensor, Told]]  # gradients, loss, what it tells


def value_and_grad(
    loss: Callable[..., tuple[Tensor, Told]],
    parameters: Iterable[nn.Parameter],
    autocast: AbstractContextManager[object],
) -> FunctionType:
    """What says the gradients of `loss` as to `parameters`, the loss itself, and whatever else it tells."""
    wanted = [parameter for parameter in parameters if parameter.requires_grad]

    def run(*args: object) -> tuple[Sequence[Tensor], Tensor, Told]:
        with autocast:
            value, told = loss(*args)
        gradients = torch.autograd.grad(value, wanted, allow_unused=True, materialize_grads=True)
        return gradients, value.detach(), told

    return run  # type: ignore[return-value]


def compiled(run: FunctionType, device: str) -> Slope:
    """`run` as one program, made when it is called first.

    Compiled as one, the way back reads what the way forth wrote. As two, each activation leaves a mask
    behind for the other, and a CPU takes longer over writing masks than over the products between them.
    """
    run.__code__ = run.__code__.replace()  # torch keeps a few programs for each code, and looks through all
    # On a CPU the calls between the kernels are compiled too: they are a tenth of a small update.
    whole = torch.compile(run, options={"cpp_wrapper": torch.device(device).type == "cpu"})

    def call(*args: object) -> tuple[Sequence[Tensor], Tensor, Told]:
        with _into_gradients():
            found: tuple[Sequence[Tensor], Tensor, Told] = whole(*args)
        return found

    return call


def _into_gradients() -> AbstractContextManager[object]:
    """Let the compiler look into torch.autograd.grad; a torch that cannot (2.10) makes two programs of it."""
    import torch._dynamo.config as settings

    known = hasattr(settings, "trace_autograd_ops")
    return settings.patch(trace_autograd_ops=True) if known else nullcontext()
