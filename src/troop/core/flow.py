"""C4 Flow: `add` never loses what it took, `sample` gives a batch or None and never blocks."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from torch import Tensor

from troop.core.algorithm import PolicyOutput
from troop.core.batch import Rollout, Transition
from troop.core.env import Step


class Sink(Protocol):
    """Takes experience."""

    def add(self, piece: Rollout) -> None:
        """Keep every row of the piece, but not the piece: its memory may be another's."""
        ...


class Source(Protocol):
    """Gives batches."""

    def sample(self, rows: int) -> Transition | None:
        """A batch of exactly `rows` rows, or None while there is not enough to draw from."""
        ...

    def reprioritize(self, index: Tensor, priority: Tensor) -> None:
        """Rows that `sample` gave as `index` matter this much now; those gone meanwhile are passed over."""
        ...


class ReplayBuffer(Sink, Source, Protocol):
    """A Sink and Source in one place that can be saved."""

    def __len__(self) -> int:
        """Rows held."""
        ...

    @property
    def capacity(self) -> int:
        """Rows it can hold."""
        ...

    @property
    def sample_age(self) -> float:
        """Rows that came since those of a batch did, on average."""
        ...

    def end_streams(self, streams: Tensor | None = None) -> None:
        """The envs of these streams (None: all) were reset without a word: no window may reach across."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All rows and the random state."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> int:
        """Take back what `state_dict` gave; returns rows that had to be dropped."""
        ...


class RateLimitedSink(Sink, Protocol):
    """A Sink that says when it has enough, fed by actors that come and go."""

    def wants_data(self) -> Literal[True] | None:
        """True while rows are welcome, else None: the one answer for which nobody is woken."""
        ...

    def end_streams(self, streams: Tensor | None = None) -> None:
        """What these streams bring next does not continue what they brought last."""
        ...


class WeightSink(Protocol):
    """Where a learner leaves its policy."""

    def publish(self, updates: int, weights: dict[str, Tensor]) -> None:
        """The policy after this many updates; it takes the place of the last."""
        ...


class WeightSource(Protocol):
    """Where the newest policy can be had."""

    def latest(self, after: int) -> tuple[int, dict[str, Tensor]] | None:
        """Version and weights, or None if nothing is newer than version `after`."""
        ...


class Recorder(Protocol):
    """Turns acting and answers into pieces of experience."""

    def on_action(self, obs: dict[str, Tensor], acted: PolicyOutput) -> None:
        """The policy acted on these rows."""
        ...

    def on_step(self, step: Step) -> list[Rollout]:
        """The env answered; finished pieces."""
        ...

    def flush(self, obs: dict[str, Tensor]) -> list[Rollout]:
        """The envs are about to be reset by force while at `obs`: whatever closes their streams."""
        ...
