"""Engine contract: an engine builds and steps the roles of a program, logs, evaluates and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from troop.core.config import bounded
from troop.core.errors import TroopError
from troop.core.program import Program
from troop.core.role import Metrics
from troop.core.signals import STOP_SIGNALS as STOP_SIGNALS


@dataclass(frozen=True)
class Until:
    """Conditions that end a run; the first one that holds ends it."""

    env_steps: int | None = bounded(None, low=1)
    minutes: float | None = bounded(None, above=0)
    """Minutes of training; evaluation is not counted."""
    target: float | None = None
    """The first evaluation whose mean return reaches this value ends the run."""


@dataclass(frozen=True)
class Counters:
    """Progress of a run; part of every checkpoint and every line of metrics."""

    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    env_faults: int = 0
    skipped_updates: int = 0
    restarts: int = 0
    wall_s: float = 0.0  # seconds of training
    evaluation_s: float = 0.0  # seconds of evaluation and checkpointing
    act_s: float = 0.0  # seconds in which policies choose actions, summed over roles
    env_s: float = 0.0  # seconds in which roles step envs or wait for them, summed over roles
    learn_s: float = 0.0  # seconds of sampling batches and updating, summed over roles
    target_reached_s: float | None = None  # wall_s at the first evaluation that reached the target


class RunObserver(Protocol):
    """Receives metrics, checkpoints and notes of a run, and may request its end."""

    def log(self, counters: Counters, metrics: dict[str, float]) -> None:
        """Receive the metrics since the last call, averaged, and the current gauges."""
        ...

    def log_evaluation(self, counters: Counters, metrics: dict[str, float]) -> None:
        """Receive the result of one evaluation."""
        ...

    def save(self, counters: Counters, state: dict[str, Any], last: bool) -> None:
        """Receive a checkpoint of all roles. It must not be dropped if it is the `last`."""
        ...

    def note(self, text: str) -> None:
        """Receive a message for the user."""
        ...

    def stop_requested(self) -> bool:
        """Return whether the run must end after the current step."""
        ...


@runtime_checkable
class CheckpointSource(Protocol):
    """A RunObserver that can return the newest checkpoint, so that a restarted host continues from it."""

    def restore(self, nodes: list[str]) -> dict[str, Any] | None:
        """Return the `node.part` entries of these nodes in the newest valid checkpoint; None without one."""
        ...


@runtime_checkable
class FileSink(Protocol):
    """A RunObserver that writes texts of roles to the run directory."""

    def write_file(self, name: str, text: str) -> None:
        """Write the file, unless there is one of this name."""
        ...


@dataclass(frozen=True)
class Result:
    """Result of a run: `done`, or `stopped` on request, in which case it can be resumed."""

    status: Literal["done", "stopped"]
    counters: Counters
    evaluation: Metrics  # of the last evaluation; empty without one
    directory: Path | None = None  # of the run, where it is now


@runtime_checkable
class StallObserver(Protocol):
    """A RunObserver that shows a step which does not return; called by another thread than the others."""

    def report_stall(self, seconds: float, text: str) -> None:
        """Show that nothing has happened for `seconds`; `text`, if not empty, is a new message about it."""
        ...

    def exit_process(self, end: Result | TroopError) -> None:
        """Record the end of a run whose thread cannot be interrupted, and exit the process."""
        ...


@dataclass(frozen=True)
class Checkpoint:
    """State from which an engine resumes a run: `node.part` entries, `policy` and `rng`."""

    counters: Counters
    state: dict[str, Any]


class Engine(Protocol):
    """Runs programs."""

    def check(self, program: Program) -> None:
        """Raise BadInput or SetupProblem if the program cannot run with these settings on this machine."""
        ...

    def run(
        self,
        program: Program,
        until: Until,
        seed: int,
        observer: RunObserver,
        checkpoint: Checkpoint | None = None,
    ) -> Result:
        """Run until a condition of `until` holds or the observer requests a stop.

        A run with a `checkpoint` continues from it; its `state` is emptied after loading to free memory.
        """
        ...
