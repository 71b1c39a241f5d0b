"""C4 Flow: `add` never loses what it took, `sample` gives a batch or None and never blocks."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from troop.core.algorithm import Acted
from troop.core.batch import Rows, Transition
from troop.core.env import Step


class Sink(Protocol):
    """Takes experience."""

    def add(self, piece: Rows) -> None:
        """Keep every row of the piece."""
        ...


class Source(Protocol):
    """Gives batches."""

    def sample(self, rows: int) -> Transition | None:
        """A batch of exactly `rows` rows, or None while there is not enough to draw from."""
        ...


class Store(Sink, Source, Protocol):
    """A Sink and Source in one place that can be saved."""

    def __len__(self) -> int:
        """Rows held."""
        ...

    def state_dict(self) -> dict[str, object]:
        """All rows and the random state."""
        ...

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take back what `state_dict` gave."""
        ...


class Recorder(Protocol):
    """Turns acting and answers into pieces of experience."""

    def acted(self, obs: dict[str, Tensor], acted: Acted) -> None:
        """The policy acted on these rows."""
        ...

    def came(self, step: Step) -> list[Rows]:
        """The env answered; finished pieces."""
        ...
