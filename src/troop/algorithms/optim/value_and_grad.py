"""value_and_grad: a loss and its gradients as one function, which torch.compile takes as one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor, nn

Aux = tuple[Any, ...]  # further outputs of a loss: tensors, or None
LossFunction = Callable[..., tuple[Tensor, Aux]]
ValueAndGrad = Callable[..., tuple[Sequence[Tensor], Tensor, Aux]]  # gradients, loss, aux


def value_and_grad(
    loss_fn: LossFunction,
    parameters: Iterable[nn.Parameter],
    device: str = "cpu",
    compile: bool = False,
    amp: bool = False,
) -> ValueAndGrad:
    """Return a function that computes `(grads, loss, aux)` of `loss_fn` with respect to `parameters`.

    `loss_fn(*args)` returns a scalar loss and a tuple of further outputs. Parameters that the loss does not
    use get zero gradients. With `amp` the loss is computed under bf16 autocast.
    """
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    autocast = torch.autocast(torch.device(device).type, torch.bfloat16, enabled=amp)

    def compute(*args: object) -> tuple[Sequence[Tensor], Tensor, Aux]:
        with autocast:
            loss, aux = loss_fn(*args)
        grads = torch.autograd.grad(loss, trainable, allow_unused=True, materialize_grads=True)
        return grads, loss.detach(), aux

    return _compiled(cast(FunctionType, compute), device) if compile else compute


def _compiled(function: FunctionType, device: str) -> ValueAndGrad:
    """Compile forward and backward as one graph, at the first call.

    One graph avoids materialising activation masks: compiled apart, writing them takes longer on a CPU than
    the matrix products between them.
    """
    # torch caches a few graphs per code object and searches all of them: give each function its own.
    function.__code__ = function.__code__.replace()
    # On a CPU the calls between kernels are compiled too; they are a tenth of a small update.
    graph = torch.compile(function, options={"cpp_wrapper": torch.device(device).type == "cpu"})

    def call(*args: object) -> tuple[Sequence[Tensor], Tensor, Aux]:
        with _trace_autograd():
            result: tuple[Sequence[Tensor], Tensor, Aux] = graph(*args)
        return result

    return call


def _trace_autograd() -> AbstractContextManager[object]:
    """Let the compiler trace torch.autograd.grad; torch 2.10 cannot and compiles two graphs."""
    import torch._dynamo.config as settings

    supported = hasattr(settings, "trace_autograd_ops")
    return settings.patch(trace_autograd_ops=True) if supported else nullcontext()
