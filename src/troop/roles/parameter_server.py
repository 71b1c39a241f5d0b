"""ParameterServer: parameters shared by many learners, updated by their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from troop.core.config import bounded
from troop.core.peers import Moments
from troop.core.remote import readonly
from troop.core.role import Metrics


@dataclass(frozen=True)
class AdaGradConfig:
    """The optimizer of a parameter server: AdaGrad (Duchi et al. 2011) with a bound on staleness."""

    lr: float = bounded(1e-3, above=0)
    """Learning rate of AdaGrad."""
    eps: float = bounded(1e-8, above=0)
    """Added to the root of the accumulated squared gradients."""
    initial_accumulator_value: float = bounded(0.0, low=0)
    """Initial sum of squared gradients; a value above 0 shortens the first steps."""
    max_staleness: int | None = bounded(None, low=0)
    """Drop a gradient if the parameters were updated more often than this since the learner pulled them."""

    def step(self, parameters: Tensor, squares: Tensor, gradient: Tensor, version: int) -> None:
        """Add the squared gradient to `squares` and move the parameters, both in place."""
        squares.addcmul_(gradient, gradient)
        parameters.addcdiv_(gradient, squares.sqrt().add_(self.eps), value=-self.lr)


@dataclass(frozen=True)
class SharedRMSPropConfig:
    """The optimizer of a parameter server: RMSProp whose running mean all learners share (A3C)."""

    lr: float = bounded(7e-4, above=0)
    """Learning rate."""
    decay: float = bounded(0.99, low=0, below=1)
    """Decay rate of the running mean of squared gradients."""
    eps: float = bounded(0.1, above=0)
    """Added to the running mean, inside the square root."""
    initial_accumulator_value: float = bounded(0.0, low=0)
    """Initial running mean of squared gradients."""
    anneal_updates: int = bounded(0, low=0)
    """Updates of all learners over which the learning rate falls linearly to 0; 0 keeps it."""
    max_staleness: int | None = bounded(None, low=0)
    """Drop a gradient if the parameters were updated more often than this since the learner pulled them."""

    def step(self, parameters: Tensor, squares: Tensor, gradient: Tensor, version: int) -> None:
        """Update the running mean `squares` and move the parameters, both in place."""
        squares.lerp_(gradient * gradient, 1 - self.decay)
        left = max(0.0, 1 - version / self.anneal_updates) if self.anneal_updates else 1.0
        parameters.addcdiv_(gradient, (squares + self.eps).sqrt_(), value=-self.lr * left)


ServerOptimizer = AdaGradConfig | SharedRMSPropConfig


@dataclass
class Slice:
    """A range of one optimizer's parameters, its sums or means of squared gradients, and its updates."""

    parameters: Tensor
    squares: Tensor
    version: int = 0


@dataclass(frozen=True, slots=True)
class Versioned:
    """Parameters and their version."""

    version: int
    parameters: Tensor


class ParameterServer:
    """Holds one range of the parameters of every optimizer; each gradient is one step, without averaging.

    In one round trip a learner pushes a gradient and pulls the newest parameters. The initial parameters are
    those of the learner that registers first.
    """

    def __init__(self, config: ServerOptimizer, name: str = "server") -> None:
        self.config, self.name = config, name
        self.slices: dict[int, Slice] = {}  # by number of the optimizer
        self.counts = {"applied": 0, "dropped_stale": 0, "dropped_outlier": 0}
        self.delay = 0.0  # running mean of the staleness of applied gradients
        self.moments: dict[str, Moments] = {}  # statistics that all learners share, by name

    def register(self, optimizer: int, parameters: Tensor) -> Versioned:
        """Return the newest parameters of `optimizer`; the first caller's become the initial ones."""
        shared = self.slices.get(optimizer)
        if shared is None:
            squares = torch.full_like(parameters, self.config.initial_accumulator_value)
            shared = self.slices[optimizer] = Slice(parameters.detach().clone(), squares)
        return Versioned(shared.version, shared.parameters)

    def push_pull(
        self, optimizer: int, gradient: Tensor | None, version: int, outlier: bool = False
    ) -> Versioned | None:
        """Apply a gradient of the parameters of `version` unless it is too old; return the newest parameters.

        `gradient` is None if the learner dropped it, as an `outlier` or because it was not finite. Returns
        None if the optimizer is not registered: this server was restarted without a checkpoint.
        """
        shared = self.slices.get(optimizer)
        if shared is None:
            return None
        delay, max_staleness = shared.version - version, self.config.max_staleness
        # A negative delay: the server was restored from a checkpoint, and those parameters no longer exist.
        fresh = delay >= 0 and (max_staleness is None or delay <= max_staleness)
        self.counts["dropped_outlier"] += outlier
        if gradient is not None:
            self.counts["applied" if fresh else "dropped_stale"] += 1
        if gradient is not None and fresh:
            self.delay += 0.01 * (delay - self.delay)
            self._apply(shared, gradient)
        return Versioned(shared.version, shared.parameters)

    @readonly
    def updates(self) -> int:
        """Return the number of updates of the first optimizer; 0 before a learner has registered."""
        return self.slices[0].version if 0 in self.slices else 0

    def merge_moments(self, name: str, batch: Moments, own: Moments) -> Moments:
        """Merge a batch into the statistics `name` and return them; the first ones are `own`, the caller's.

        They are in double precision, so that the count of samples does not saturate.
        """
        shared = self.moments.get(name)
        shared = own.to("cpu", torch.float64) if shared is None else shared.merge(batch)
        self.moments[name] = shared
        return shared

    @torch.no_grad()
    def _apply(self, shared: Slice, gradient: Tensor) -> None:
        self.config.step(shared.parameters, shared.squares, gradient, shared.version)
        shared.version += 1

    def gauges(self) -> Metrics:
        """Return the numbers of applied and dropped gradients and the mean delay of applied ones."""
        gauges: Metrics = {f"{self.name}/{name}": count for name, count in self.counts.items()}
        return gauges | {f"{self.name}/delay": self.delay}

    def state_dict(self) -> dict[str, Any]:
        """Return parameters, sums of squared gradients, versions, counts and shared statistics."""
        slices = {
            str(number): {"parameters": x.parameters, "squares": x.squares, "version": x.version}
            for number, x in self.slices.items()
        }
        moments = {name: x.as_dict() for name, x in self.moments.items()}
        return {"slices": slices, "counts": dict(self.counts), "delay": self.delay, "moments": moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.slices = {
            int(number): Slice(x["parameters"].clone(), x["squares"].clone(), int(x["version"]))
            for number, x in state["slices"].items()
        }
        self.counts = {name: int(count) for name, count in state["counts"].items()}
        self.delay = float(state["delay"])
        self.moments = {name: Moments(**x) for name, x in state["moments"].items()}
