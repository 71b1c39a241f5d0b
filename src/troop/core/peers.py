"""What copies of a learner share: optimizer steps, statistics and the count of updates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


@dataclass(frozen=True, slots=True)
class Moments:
    """Number of samples with their mean and variance, per column, and optionally their largest magnitude."""

    count: Tensor
    mean: Tensor
    var: Tensor
    max_abs: Tensor | None = None

    def merge(self, other: Moments) -> Moments:
        """Return the moments of both sets of samples (Chan et al. 1979).

        A column that would not be finite keeps its values, so that a bad batch does not spoil them for good.
        """
        total = self.count + other.count
        weight, delta = other.count / total, other.mean - self.mean
        var = self.var * (1 - weight) + other.var * weight + delta.square() * weight * (1 - weight)
        finite = var - var == 0
        mean, var = (
            torch.where(finite, self.mean + delta * weight, self.mean),
            torch.where(finite, var, self.var),
        )
        if self.max_abs is None or other.max_abs is None:
            return Moments(total, mean, var)
        return Moments(
            total, mean, var, torch.where(finite, self.max_abs.maximum(other.max_abs), self.max_abs)
        )

    def to(self, device: str | torch.device, dtype: torch.dtype | None = None) -> Moments:
        """Return the moments on `device` with `dtype`; None keeps the dtype."""
        count, mean, var = (x.to(device, dtype) for x in (self.count, self.mean, self.var))
        return Moments(count, mean, var, None if self.max_abs is None else self.max_abs.to(device, dtype))

    def as_dict(self) -> dict[str, Tensor | None]:
        """Return the fields by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


class Peers(Protocol):
    """The other copies of this learner.

    Copies that step together (data parallelism) call `average_gradient`, `mean` and `merge_moments` the same
    number of times in the same order: each call waits for all of them.
    """

    size: int  # number of copies that step together

    def average_gradient(self, gradient: Tensor, loss: Tensor) -> None:
        """Replace the gradient by its mean over the copies that step together.

        It becomes NaN on all of them if the loss of one is not finite, so that all skip the same steps.
        """
        ...

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of x over the copies that step together, the same bits on each."""
        ...

    def optimizer(self, parameters: list[nn.Parameter], make: MakeOptimizer) -> Optimizer:
        """Return an optimizer of `parameters` whose steps all copies share."""
        ...

    def merge_moments(self, name: str, batch: Moments, own: Moments) -> Moments | None:
        """Add a batch to the statistics `name` of all copies; return the newest ones, to replace `own`.

        `own` are the statistics of this copy, including the batch; they become the shared ones if there are
        none, or none any more. None: keep `own`, since there is no other copy or no reply yet.
        """
        ...

    def period_elapsed(self, updates: int, period: int) -> bool:
        """Return whether another `period` of updates is complete; this copy has made `updates`."""
        ...


@runtime_checkable
class ExchangingPeers(Peers, Protocol):
    """Peers whose `merge_moments` never waits: it keeps batches until `exchange`."""

    def exchange(self, own: Moments) -> Moments:
        """Share the kept batches with all copies; return the statistics of all, to replace `own`."""
        ...


class NoPeers:
    """A single learner."""

    size = 1

    def average_gradient(self, gradient: Tensor, loss: Tensor) -> None:
        """Keep the gradient."""

    def mean(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def optimizer(self, parameters: list[nn.Parameter], make: MakeOptimizer) -> Optimizer:
        """Return `make(parameters)`."""
        return make(parameters)

    def merge_moments(self, name: str, batch: Moments, own: Moments) -> Moments | None:
        """Return None: the learner's own statistics are those of all samples."""
        return None

    def period_elapsed(self, updates: int, period: int) -> bool:
        """Return whether `updates` is a multiple of `period`."""
        return updates % period == 0


NO_PEERS = NoPeers()
