"""Limiter: how many rows may be drawn for each row that came; the only speed control of a system."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from troop.core.batch import Rollout, Transition
from troop.core.flow import ReplayBuffer
from troop.core.remote import zero_copy
from troop.core.role import Metrics


class Limiter:
    """Keeps rows drawn near `ratio` x rows that came after the first `warmup`, within `tolerance` rows.

    Both sides are counted in rows, never in messages: what a batch or a piece holds does not matter. A
    `ratio` of 0 lets both sides run free, as Ape-X's authors did, once the warm-up is over. With a tolerance
    of at least half a batch the two sides can never wait for each other.
    """

    def __init__(self, ratio: float, warmup: int, tolerance: float) -> None:
        self.ratio, self.warmup, self.tolerance = ratio, warmup, tolerance
        self.inserted, self.sampled = 0, 0

    @property
    def credit(self) -> float:
        """Rows that may still be drawn for what came; below 0 if more were drawn."""
        return (self.inserted - self.warmup) * self.ratio - self.sampled

    def may_insert(self) -> bool:
        """Whether those who bring rows may go on."""
        return not self.ratio or self.credit <= self.tolerance

    def may_sample(self, rows: int) -> bool:
        """Whether a batch of `rows` may be drawn."""
        if self.inserted < self.warmup:
            return False
        return not self.ratio or self.credit + self.tolerance >= rows

    @property
    def had(self) -> float:
        """Rows drawn for each row that came after the warm-up, so far."""
        return self.sampled / max(1, self.inserted - self.warmup)


class RateLimited:
    """A store behind a Limiter: an Intake for actors and a Source for learners."""

    def __init__(
        self, store: ReplayBuffer, limiter: Limiter, save: bool = True, name: str = "replay"
    ) -> None:
        self.store, self.limiter, self.save, self.name = store, limiter, save, name
        self.notes: list[str] = []

    def wants_data(self) -> Literal[True] | None:
        """True while the learner keeps up."""
        return True if self.limiter.may_insert() else None

    @zero_copy
    def add(self, piece: Rollout) -> None:
        """Keep the piece, whatever the limiter says: what was taken is never lost."""
        piece = piece.cpu()
        self.store.add(piece)
        self.limiter.inserted += int((~piece.closing).sum())

    def end_streams(self, streams: Tensor | None = None) -> None:
        """What these streams, or all, bring next does not continue what they brought last."""
        self.store.end_streams(streams)

    def on_restart(self) -> None:
        """End all streams: the senders went on while this host was down."""
        self.end_streams()

    def sample(self, rows: int) -> Transition | None:
        """A batch, or None while rows are missing or the learner is ahead of the actors."""
        if not self.limiter.may_sample(rows):
            return None
        batch = self.store.sample(rows)
        self.limiter.sampled += 0 if batch is None else rows
        return batch

    def reprioritize(self, index: Tensor, priority: Tensor) -> None:
        """Rows of earlier batches matter this much now."""
        self.store.reprioritize(index, priority)

    def gauges(self) -> Metrics:
        """Fill and age, and samples per insert wanted and had."""
        read = {
            "rows": len(self.store),
            "capacity": self.store.capacity,
            "age": self.store.sample_age,
            "samples_per_insert": self.limiter.had,
            "samples_per_insert_wanted": self.limiter.ratio,
        }
        return {f"{self.name}/{what}": value for what, value in read.items()}

    def state_dict(self) -> dict[str, Any]:
        """The rows, unless they are not to be saved, and both counts."""
        if not self.save:
            return {"replay": None, "inserted": 0, "sampled": 0}  # an empty store warms up again
        counts = {"inserted": self.limiter.inserted, "sampled": self.limiter.sampled}
        return {"replay": self.store.state_dict()} | counts

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on; what could not be taken back is said in `notes`."""
        self.limiter.inserted, self.limiter.sampled = int(state["inserted"]), int(state["sampled"])
        if state["replay"] is None:
            self.notes.append("the replay was not saved (--system.save-replay): it fills anew")
        elif dropped := self.store.load_state_dict(state["replay"]):
            self.notes.append(f"dropped {dropped:,} replay rows that have no place with these settings")
