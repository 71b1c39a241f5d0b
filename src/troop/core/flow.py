"""Contracts of the data path: rollouts go into a `Sink`, batches come out of a `Source`, weights go back.

`Sink.add` never drops a row. `Source.sample` returns a batch or None and never blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from troop.core.algorithm import PolicyOutput
from troop.core.batch import Rollout, State, Transition
from troop.core.env import Obs, Step
from troop.core.role import Checkpointable

Piece = TypeVar("Piece", contravariant=True)  # what recorders send: Rollout or Trajectory
Sample = TypeVar("Sample", covariant=True)  # what learners receive: Transition or Trajectory


class Sink(Protocol[Piece]):
    """Receives what a recorder sends."""

    def add(self, piece: Piece, /) -> None:
        """Copy or keep all rows; the memory of a Rollout may be reused after the call."""
        ...


class Source(Protocol[Sample]):
    """Returns batches."""

    def sample(self, rows: int) -> Sample | None:
        """Return a batch of exactly `rows` rows (trajectories: env streams), or None while there is none."""
        ...


@runtime_checkable
class PrioritizedSource(Protocol):
    """A Source whose rows have priorities."""

    def reprioritize(self, index: Tensor, priority: Tensor) -> None:
        """Set the priorities of the rows with these ids, from `Transition.index`; skip overwritten rows."""
        ...


class Store(Sink[Piece], Source[Sample], Protocol[Piece, Sample]):
    """A Sink and Source of the same rows that can be saved."""

    def __len__(self) -> int:
        """Number of rows stored."""
        ...

    @property
    def capacity(self) -> int:
        """Maximum number of rows."""
        ...

    @property
    def sample_age(self) -> float:
        """Mean age of the rows of a batch: the number of rows (of sequences: env steps) added after it."""
        ...

    @property
    def reward_scale(self) -> Checkpointable | None:
        """Statistics that scale the rewards of batches, if any; they outlive the rows."""
        ...

    def end_streams(self, streams: Tensor | None = None) -> None:
        """End the episodes of these streams (None: all) after a forced reset: no n-step window crosses it."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return all rows and the state of the random generators."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> int:
        """Restore the result of `state_dict`; return the number of rows that did not fit."""
        ...


class ReplayBuffer(Store[Rollout, Transition], PrioritizedSource, Protocol):
    """A Store of rollouts that returns n-step transitions, possibly by priority."""


class RateLimitedSink(Sink[Piece], Protocol[Piece]):
    """A Sink that applies back-pressure to its actors, which may be restarted at any time."""

    def wants_data(self) -> Literal[True] | None:
        """Return True while rows are accepted, else None, which does not wake an idle caller's host."""
        ...

    def end_streams(self, streams: Tensor | None = None) -> None:
        """The next rows of these streams (None: all) do not continue their last ones."""
        ...


class WeightSink(Protocol):
    """Receives the weights that a learner publishes."""

    def publish(self, updates: int, weights: dict[str, Tensor]) -> None:
        """Replace the current weights by those after `updates` updates."""
        ...


class WeightSource(Protocol):
    """Returns the newest weights."""

    def latest(self, after: int) -> tuple[int, dict[str, Tensor]] | None:
        """Return version and weights, or None if the current version is `after`."""
        ...


Recorded = TypeVar("Recorded", covariant=True)  # what a recorder returns: Rollout or Trajectory


class Recorder(Protocol[Recorded]):
    """Builds rollouts or trajectories from the actions of a policy and the steps of an env."""

    def on_action(self, obs: Obs, output: PolicyOutput, state: State = None, version: int = -1) -> None:
        """Record that the policy of this version returned `output` for `obs` and its recurrent `state`."""
        ...

    def on_step(self, step: Step) -> Sequence[Recorded]:
        """Record the result of the action; return what it completes."""
        ...

    def flush(self, obs: Obs) -> Sequence[Recorded]:
        """End all streams at `obs`, before a forced reset of the envs; return what this completes."""
        ...


@runtime_checkable
class RolloutRecorder(Protocol[Recorded]):
    """A Recorder of rollouts of `length` steps, which can end one early."""

    length: int
    time: int  # steps recorded of the current rollout

    def end_rollout(self, obs: Obs) -> Sequence[Recorded]:
        """Return what was recorded as a shorter rollout that ends at `obs`; the episodes continue."""
        ...


@runtime_checkable
class ExchangesStatistics(Protocol):
    """Statistics that copies of a learner share at fixed times."""

    def exchange(self) -> None:
        """Collective. Replace the statistics by those of all copies."""
        ...
