"""C7 Engine: turns a Program into running roles, loops, sums metrics, saves, stops, names the guilty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from troop.core.config import bounded
from troop.core.program import Program
from troop.core.role import Metrics


@dataclass(frozen=True)
class Until:
    """When a run is done: at the first of these."""

    env_steps: int | None = bounded(None, low=1)
    minutes: float | None = bounded(None, above=0)
    """Training time; evaluation is not counted."""
    target: float | None = None
    """The first evaluation whose mean return reaches this ends the run."""


@dataclass(frozen=True)
class Counters:
    """Where a run stands; goes into checkpoints and every line of metrics."""

    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    env_faults: int = 0
    skipped_updates: int = 0
    restarts: int = 0
    wall_s: float = 0.0  # training only
    evaluation_s: float = 0.0
    target_reached_s: float | None = None


class RunObserver(Protocol):
    """Whoever looks on: writes files, draws the panel, and may ask for an end."""

    def log(self, counters: Counters, metrics: dict[str, float]) -> None:
        """Metrics averaged since the last call."""
        ...

    def evaluated(self, counters: Counters, metrics: dict[str, float]) -> None:
        """The result of one evaluation."""
        ...

    def save(self, counters: Counters, state: dict[str, Any], last: bool) -> None:
        """A checkpoint of every role; one that cannot be done without if it is the `last`."""
        ...

    def note(self, text: str) -> None:
        """Something worth a line."""
        ...

    def stop_requested(self) -> bool:
        """Whether the user wants the run to end after this step."""
        ...


@runtime_checkable
class CheckpointSource(Protocol):
    """A Watch that can also give back what it saved, so that a role that died goes on from there."""

    def restore(self, nodes: list[str]) -> dict[str, Any] | None:
        """The parts, named `node.part`, of these nodes in the newest valid checkpoint; None without one."""
        ...


@dataclass(frozen=True)
class Result:
    """How a run ended: `done`, or `stopped` on request and resumable."""

    status: Literal["done", "stopped"]
    counters: Counters
    evaluation: Metrics


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds for an engine."""

    counters: Counters
    state: dict[str, Any]


class Engine(Protocol):
    """Runs programs."""

    def check(self, program: Program) -> None:
        """Raise BadInput or SetupProblem if it is seen before anything starts that this cannot run here."""
        ...

    def run(
        self, program: Program, until: Until, seed: int, watch: RunObserver, saved: Checkpoint | None = None
    ) -> Result:
        """Run until done or asked to stop; go on from `saved` if given."""
        ...
