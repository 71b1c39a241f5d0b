"""What copies of a learner share: optimizer steps, statistics and the count of updates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


class Peers(Protocol):
    """The other copies of this learner."""

    def optimizer(self, parameters: list[nn.Parameter], make: MakeOptimizer) -> Optimizer:
        """Return an optimizer of `parameters` whose steps all copies share."""
        ...

    def mean(self, x: Tensor) -> Tensor:
        """Return `x` averaged over all copies."""
        ...

    def period_elapsed(self, updates: int, period: int) -> bool:
        """Return whether another `period` of updates is complete; this copy has made `updates`."""
        ...


class NoPeers:
    """A single learner."""

    def optimizer(self, parameters: list[nn.Parameter], make: MakeOptimizer) -> Optimizer:
        """Return `make(parameters)`."""
        return make(parameters)

    def mean(self, x: Tensor) -> Tensor:
        """Return `x`."""
        return x

    def period_elapsed(self, updates: int, period: int) -> bool:
        """Return whether `updates` is a multiple of `period`."""
        return updates % period == 0


NO_PEERS = NoPeers()
