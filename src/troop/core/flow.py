"""Contracts of the data path: rollouts go into a `Sink`, batches come out of a `Source`, weights go back.

`Sink.add` never drops a row. `Source.sample` returns a batch or None and never blocks.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

from torch import Tensor

from troop.core.algorithm import PolicyOutput
from troop.core.batch import Rollout, Transition
from troop.core.env import Step
from troop.core.role import Checkpointable


class Sink(Protocol):
    """Receives rollouts."""

    def add(self, rollout: Rollout) -> None:
        """Copy all rows of the rollout; its memory may be reused after the call."""
        ...


class Source(Protocol):
    """Returns batches."""

    def sample(self, rows: int) -> Transition | None:
        """Return a batch of exactly `rows` rows, or None while none may be sampled."""
        ...

    def reprioritize(self, index: Tensor, priority: Tensor) -> None:
        """Set the priorities of the rows with these ids, from `Transition.index`; skip overwritten rows."""
        ...


class ReplayBuffer(Sink, Source, Protocol):
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
        """Mean age of the rows of a batch: the number of rows added since each was."""
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


class RateLimitedSink(Sink, Protocol):
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


class Recorder(Protocol):
    """Builds rollouts from the actions of a policy and the steps of an env."""

    def on_action(self, obs: dict[str, Tensor], output: PolicyOutput) -> None:
        """Record that the policy returned `output` for `obs`."""
        ...

    def on_step(self, step: Step) -> list[Rollout]:
        """Record the result of the action; return the rollouts completed by it."""
        ...

    def flush(self, obs: dict[str, Tensor]) -> list[Rollout]:
        """Return the rollouts that end all streams at `obs`, before a forced reset of the envs."""
        ...
