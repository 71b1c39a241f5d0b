"""ParameterServer: parameters that many learners share, moved by whoever brings a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from troop.core.config import bounded
from troop.core.role import Metrics


@dataclass(frozen=True)
class AdaGradConfig:
    """How a server takes gradients: AdaGrad (Duchi et al. 2011), and none that are too old."""

    lr: float = bounded(1e-3, above=0)
    eps: float = bounded(1e-8, above=0)
    """Added to the root of the summed squares; with `first` it decides how long the first steps are."""
    initial_accumulator_value: float = bounded(0.0, low=0)
    """What the sums of squares begin with: above 0 the first steps are no longer than others."""
    max_staleness: int | None = bounded(None, low=0)
    """A gradient is dropped if the parameters moved more often than this since they were fetched."""


@dataclass
class Slice:
    """A range of the parameters of one optimizer, its sums of squared gradients, and how often it moved."""

    parameters: Tensor
    squares: Tensor
    version: int = 0


@dataclass(frozen=True, slots=True)
class Versioned:
    """Parameters, and the version they are of."""

    version: int
    parameters: Tensor


class ParameterServer:
    """One shard: a range of every optimizer's parameters; each gradient is one step, none is averaged.

    Passive: a learner brings a gradient and takes the newest parameters home in one round trip. The start is
    what the first to enter has.
    """

    def __init__(self, config: AdaGradConfig, name: str = "server") -> None:
        self.config, self.name = config, name
        self.slices: dict[int, Slice] = {}
        self.counts = {"applied": 0, "dropped_stale": 0, "dropped_outlier": 0}
        self.delay = 0.0  # of applied gradients, a running mean

    def register(self, which: int, parameters: Tensor) -> Versioned:
        """The newest parameters of optimizer number `which`; those given, if there are none yet."""
        held = self.slices.get(which)
        if held is None:
            squares = torch.full_like(parameters, self.config.initial_accumulator_value)
            held = self.slices[which] = Slice(parameters.detach().clone(), squares)
        return Versioned(held.version, held.parameters)

    def push_pull(
        self, which: int, gradient: Tensor | None, version: int, outlier: bool = False
    ) -> Versioned | None:
        """Step down a gradient of parameters of `version`, unless that is too old; the newest parameters.

        Without a gradient (it was an `outlier` or no number) they are only fetched. None if there are none:
        this server was restarted with nothing to go on from, and whoever asks must enter again.
        """
        held = self.slices.get(which)
        if held is None:
            return None
        delay, most = held.version - version, self.config.max_staleness
        # A version of the future: the server went back to a checkpoint, and those parameters are gone.
        fresh = delay >= 0 and (most is None or delay <= most)
        self.counts["dropped_outlier"] += outlier
        if gradient is not None:
            self.counts["applied" if fresh else "dropped_stale"] += 1
        if gradient is not None and fresh:
            self.delay += 0.01 * (delay - self.delay)
            self._descend(held, gradient)
        return Versioned(held.version, held.parameters)

    @torch.no_grad()
    def _descend(self, held: Slice, gradient: Tensor) -> None:
        held.squares.addcmul_(gradient, gradient)
        held.parameters.addcdiv_(gradient, held.squares.sqrt().add_(self.config.eps), value=-self.config.lr)
        held.version += 1

    def gauges(self) -> Metrics:
        """What became of the gradients, and how old the applied ones were."""
        read: Metrics = {f"{self.name}/{what}": count for what, count in self.counts.items()}
        return read | {f"{self.name}/delay": self.delay}

    def state_dict(self) -> dict[str, Any]:
        """Parameters, sums, versions, counts."""
        slices = {
            str(which): {"parameters": held.parameters, "squares": held.squares, "version": held.version}
            for which, held in self.slices.items()
        }
        return {"slices": slices, "counts": dict(self.counts), "delay": self.delay}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them back."""
        self.slices = {
            int(which): Slice(held["parameters"].clone(), held["squares"].clone(), int(held["version"]))
            for which, held in state["slices"].items()
        }
        self.counts = {name: int(count) for name, count in state["counts"].items()}
        self.delay = float(state["delay"])
