"""value_and_grad: a loss and its gradients as one function, which torch.compile takes as one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor, nn

from troop.core.algorithm import CompileMode

Aux = tuple[Any, ...]  # further outputs of a loss: tensors, or None
LossFunction = Callable[..., tuple[Tensor, Aux]]
Computation = Callable[..., tuple[Sequence[Tensor], Tensor, Aux]]  # gradients, loss, aux


def value_and_grad(
    loss_fn: LossFunction,
    parameters: Iterable[nn.Parameter],
    device: str = "cpu",
    compile: CompileMode = False,
    amp: bool = False,
) -> LossGradient:
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

    return LossGradient(compute, device, compile)


@contextmanager
def frozen(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Compute no gradients of `parameters` within the context; gradients still pass through their layers."""
    for parameter in parameters:
        parameter.requires_grad = False
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad = True


class LossGradient:
    """A function that computes `(grads, loss, aux)`, with compiled code while `compiled` is set.

    If the mode is `auto`, `compiled` is not set at first, and a failed compilation sets `error` and computes
    without it; otherwise it raises.
    """

    def __init__(self, compute: Computation, device: str, mode: CompileMode) -> None:
        self.compute, self.device = compute, device
        self.compiled, self.keep_errors = mode is True, mode == "auto"
        self.error: str | None = None
        self._graph: Computation | None = None

    def __call__(self, *args: object) -> tuple[Sequence[Tensor], Tensor, Aux]:
        """Return gradients, loss and further outputs of the loss."""
        if not self.compiled or self.error is not None:
            return self.compute(*args)
        if self._graph is None:
            self._graph = _compiled(cast(FunctionType, self.compute), self.device)
        if not self.keep_errors:
            return self._graph(*args)
        try:
            return self._graph(*args)
        except _compiler_errors() as error:
            self.error = (str(error).strip().splitlines() or [type(error).__name__])[0]
            return self.compute(*args)


def _compiler_errors() -> tuple[type[Exception], ...]:
    """Return what torch raises if it cannot compile; evaluated only after an exception was raised."""
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import CppCompileError, InductorError

    return TorchDynamoException, InductorError, CppCompileError


def _compiled(function: FunctionType, device: str) -> Computation:
    """Compile forward and backward as one graph, at the first call.

    One graph avoids materialising activation masks: compiled apart, writing them takes longer on a CPU than
    the matrix products between them.
    """
    # torch caches a few graphs per code object and searches all of them: give each function its own.
    function.__code__ = function.__code__.replace()
    options: dict[str, Any] = {
        # On a CPU the calls between kernels are compiled too; they are a tenth of a small update.
        "cpp_wrapper": torch.device(device).type == "cpu",
        # Draw random numbers as without compilation: the same numbers, and twenty times faster on a CPU.
        "fallback_random": True,
        # Do not check before each call whether attributes of modules have changed; they never do.
        "guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe,
    }
    graph, trace_autograd = torch.compile(function, options=options), _trace_autograd()

    def call(*args: object) -> tuple[Sequence[Tensor], Tensor, Aux]:
        with trace_autograd:
            result: tuple[Sequence[Tensor], Tensor, Aux] = graph(*args)
        return result

    return call


def _trace_autograd() -> AbstractContextManager[object]:
    """Return a context in which the compiler traces torch.autograd.grad.

    Only our calls may be in it: with this setting torch 2.13 compiles functions that call `backward` and an
    optimizer wrongly. torch 2.10 does not have it and compiles two graphs.
    """
    import torch._dynamo.config as settings

    supported = hasattr(settings, "trace_autograd_ops")
    return settings.patch(trace_autograd_ops=True) if supported else nullcontext()
