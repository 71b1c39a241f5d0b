"""Limiter: keeps samples per insert at a target; the only rate control between actors and learners.

`RateLimited` puts a replay behind a Limiter in units of rows (Ape-X, Gorila); `RatioLimited` does so in
units of updates and vector steps (PQL).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from torch import Tensor

from troop.core.batch import Rollout, Trajectory, Transition
from troop.core.flow import PrioritizedSource, ReplayBuffer, Store
from troop.core.remote import zero_copy
from troop.core.role import Metrics


class Limiter:
    """Keeps rows sampled within `tolerance` of `ratio` x rows inserted after the first `warmup` rows.

    Both sides are counted in rows, whatever the sizes of batches and rollouts. With a `ratio` of 0 both
    sides run freely after the warm-up, as in the Ape-X paper. With a tolerance of at least half a batch the
    two sides cannot wait for each other at the same time.
    """

    def __init__(self, ratio: float, warmup: int, tolerance: float) -> None:
        self.ratio, self.warmup, self.tolerance = ratio, warmup, tolerance
        self.inserted, self.sampled = 0, 0

    @property
    def credit(self) -> float:
        """Rows that may still be sampled for the rows inserted; negative if too many were sampled."""
        return (self.inserted - self.warmup) * self.ratio - self.sampled

    def may_insert(self) -> bool:
        """Return whether actors may insert rows."""
        return not self.ratio or self.credit <= self.tolerance

    def may_sample(self, rows: int) -> bool:
        """Return whether a batch of `rows` may be sampled."""
        if self.inserted < self.warmup:
            return False
        return not self.ratio or self.credit + self.tolerance >= rows

    @property
    def samples_per_insert(self) -> float:
        """Rows sampled per row inserted after the warm-up, so far."""
        return self.sampled / max(1, self.inserted - self.warmup)


Batch = TypeVar("Batch", Transition, Trajectory)


class SampledStore(Store[Any, Any], PrioritizedSource, Protocol):
    """A replay of rows or of sequences; one sequence counts as one row."""


class RateLimited:
    """A replay behind a Limiter: a RateLimitedSink for actors and a Source for learners."""

    def __init__(
        self, replay: SampledStore, limiter: Limiter, save: bool = True, name: str = "replay"
    ) -> None:
        self.replay, self.limiter, self.save, self.name = replay, limiter, save, name
        self.notes: list[str] = []

    def wants_data(self) -> Literal[True] | None:
        """Return True while actors may insert rows, else None."""
        return True if self.limiter.may_insert() else None

    @zero_copy
    def add(self, rollout: Rollout | Trajectory) -> None:
        """Add all rows whatever the limiter allows: rows that were sent are never dropped."""
        rollout = rollout.cpu()
        self.replay.add(rollout)
        self.limiter.inserted += rollout.rows

    def end_streams(self, streams: Tensor | None = None) -> None:
        """The next rows of these streams (None: all) do not continue their last ones."""
        self.replay.end_streams(streams)

    def on_restart(self) -> None:
        """End all streams: actors continued while this host was down."""
        self.end_streams()

    def sample(self, rows: int) -> Any:  # noqa: ANN401 - a Transition, or a Trajectory of sequences
        """Return a batch; None while the replay has too few rows or the learner is ahead of the actors."""
        return self._limited(self.replay.sample, rows)

    def _limited(self, sample: Callable[[int], Batch | None], rows: int) -> Batch | None:
        """Return `sample(rows)` if the limiter allows it, and count the rows."""
        batch = sample(rows) if self.limiter.may_sample(rows) else None
        self.limiter.sampled += 0 if batch is None else rows
        return batch

    def reprioritize(self, index: Tensor, priority: Tensor) -> None:
        """Set the priorities of rows of earlier batches."""
        self.replay.reprioritize(index, priority)

    def gauges(self) -> Metrics:
        """Return size, capacity, sample age, and samples per insert with their target."""
        gauges = {
            "rows": len(self.replay),
            "capacity": self.replay.capacity,
            "sample_age": self.replay.sample_age,
            "samples_per_insert": self.limiter.samples_per_insert,
            "samples_per_insert_target": self.limiter.ratio,
        }
        return {f"{self.name}/{name}": value for name, value in gauges.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the replay, or only its reward scale if `save` is False, and the counts of the limiter."""
        if not self.save:
            scale = self.replay.reward_scale
            reward_scale = None if scale is None else scale.state_dict()
            # An empty replay has a warm-up again.
            return {"replay": None, "reward_scale": reward_scale, "inserted": 0, "sampled": 0}
        counts = {"inserted": self.limiter.inserted, "sampled": self.limiter.sampled}
        return {"replay": self.replay.state_dict()} | counts

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`; `notes` report what could not be restored."""
        self.limiter.inserted, self.limiter.sampled = int(state["inserted"]), int(state["sampled"])
        if state["replay"] is None:
            self.notes.append("the checkpoint has no replay: it starts empty")
            if self.replay.reward_scale is not None and state["reward_scale"] is not None:
                self.replay.reward_scale.load_state_dict(state["reward_scale"])
        elif dropped := self.replay.load_state_dict(state["replay"]):
            self.notes.append(f"dropped {dropped:,} replay rows that do not fit these settings")


@dataclass(frozen=True)
class UpdateRatio:
    """Target number of updates per vector step of one learner."""

    learner: str  # its name in metrics
    updates_per_step: float  # updates per vector step; 0: no limit
    tolerance: float  # in vector steps; at least one update is allowed
    batch_size: int  # rows per update
    envs: int  # rows per vector step

    def limiter(self, warmup: int) -> Limiter:
        """Return a Limiter in rows, with a warm-up of `warmup` vector steps."""
        tolerance = self.batch_size * max(1.0, self.tolerance * self.updates_per_step)
        ratio = self.updates_per_step * self.batch_size / self.envs
        return Limiter(ratio, warmup * self.envs, tolerance)


class RatioLimited(RateLimited):
    """A RateLimited replay next to its only learner, with metrics in updates and vector steps."""

    def __init__(
        self,
        replay: ReplayBuffer,
        name: str,
        ratio: UpdateRatio,
        warmup: int,
        save: bool = True,
        device: str = "cpu",
    ) -> None:
        super().__init__(replay, ratio.limiter(warmup), save, name)
        self.ratio, self.device = ratio, device

    def add(self, rollout: Rollout | Trajectory) -> None:
        """Add all rows, on the learner's device."""
        self.replay.add(rollout.to(self.device))
        # Counted on the rows as received, on the host: the count does not wait for a GPU.
        self.limiter.inserted += rollout.rows

    def gauges(self) -> Metrics:
        """Return size, capacity, updates and vector steps after the warm-up, and their target ratio."""
        steps = max(0, self.limiter.inserted - self.limiter.warmup) / self.ratio.envs
        learner = self.ratio.learner
        return {
            f"{self.name}/rows": len(self.replay),
            f"{self.name}/capacity": self.replay.capacity,
            f"{learner}/updates": self.limiter.sampled // self.ratio.batch_size,
            f"{learner}/steps": steps,
            f"{learner}/updates_per_step_target": self.ratio.updates_per_step,
        }
