"""Role contracts: the methods and attributes that engines use of the roles of a program.

A role is a plain class. An engine checks with `isinstance` which of these protocols a role implements; each
is optional. A role with `step` is active: the engine calls `step` in a loop or, if its node has a schedule,
when the schedule is due. A role without `step` is passive: it only serves calls of other roles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:  # a host whose roles do not use torch starts ten times faster without importing it
    from torch import Tensor

Metrics = dict[str, "float | int | Tensor"]
"""Metric names and values. `count/*` metrics are summed over roles and time, all others are averaged between
two log lines. Values that are tensors are read only when a line is logged, so no update waits for a read."""


@runtime_checkable
class Role(Protocol):
    """An active role."""

    def step(self) -> Metrics | None:
        """Do one bounded piece of work and return its metrics; None if there was nothing to do."""
        ...


@runtime_checkable
class Checkpointable(Protocol):
    """A role whose state is part of a checkpoint.

    The engine calls `state_dict` between steps when it makes a checkpoint. It calls `load_state_dict` once,
    after building all roles of the host and before the first step: in a resumed run and, unless the role is
    `RestartsFresh`, when it restarts the host after a crash.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return nested dicts of tensors, numbers, strings and lists."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        ...


@runtime_checkable
class RestartsFresh(Protocol):
    """A role that declares whether it starts without its checkpointed state after a crash of its host.

    Actors set the class attribute `restart_fresh = True`: an actor restarted after a crash starts new
    episodes instead of repeating those since the checkpoint. A resumed run restores every role, whatever
    this attribute says.
    """

    restart_fresh: bool


@runtime_checkable
class Restartable(Protocol):
    """A role that must react when it was restored after a crash.

    The engine calls `on_restart` after `load_state_dict` and before the first step or call, only if the host
    crashed within a run and its state was restored. The peers of the role have continued since the
    checkpoint, so data that arrives next does not continue the restored data.
    """

    def on_restart(self) -> None:
        """End whatever the restored state continues, for example the streams of a replay buffer."""
        ...


@runtime_checkable
class PublishesWeights(Protocol):
    """A role that holds the weights of a module.

    When it makes a checkpoint, the engine calls `latest(-1)` of the first such role of each host whose
    weights are those of the policy (see `NamesModule`), and stores the result as the policy of the run.
    """

    def latest(self, after: int) -> tuple[int, dict[str, Tensor]] | None:
        """Return version and weights; None if the version is `after` or there are no weights yet."""
        ...


@runtime_checkable
class NamesModule(Protocol):
    """A role that holds or trains one module of an algorithm. Roles without the attribute hold the policy."""

    module_name: str  # "policy" or the name of another module, e.g. "critic"


@runtime_checkable
class HasGauges(Protocol):
    """A role with current readings, such as a fill level. The engine reads them about once a second."""

    def gauges(self) -> Metrics:
        """Return current values by metric name; they are logged as they are, neither summed nor averaged."""
        ...


@runtime_checkable
class HasNotes(Protocol):
    """A role that reports events to the user. The engine logs and clears the list with every report."""

    notes: list[str]


@runtime_checkable
class HasFiles(Protocol):
    """A role with texts for the run directory, by file name. The engine clears them as it does notes."""

    files: dict[str, str]


@runtime_checkable
class Closeable(Protocol):
    """A role that holds resources. The engine calls `close` once when the run ends or the host fails."""

    def close(self) -> None:
        """Release all resources."""
        ...
