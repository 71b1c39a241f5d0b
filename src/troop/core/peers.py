"""Where copies of a learner meet: gradients in the optimizer, statistics in the mean, time in the turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


class Peers(Protocol):
    """The other copies of this learner."""

    def optimizer(self, parameters: list[nn.Parameter], make: MakeOptimizer) -> Optimizer:
        """The optimizer of `parameters`, whose steps all copies share."""
        ...

    def mean(self, x: Tensor) -> Tensor:
        """`x` averaged over all copies."""
        ...

    def period_elapsed(self, updates: int, period: int) -> bool:
        """Whether one more `period` of updates is over, of which this copy has made `updates`."""
        ...


class NoPeers:
    """A learner on its own."""

    def optimizer(self, parameters: list[nn.Parameter], make: MakeOptimizer) -> Optimizer:
        """Just the optimizer."""
        return make(parameters)

    def mean(self, x: Tensor) -> Tensor:
        """Just `x`."""
        return x

    def period_elapsed(self, updates: int, period: int) -> bool:
        """By its own count."""
        return updates % period == 0


NO_PEERS = NoPeers()
