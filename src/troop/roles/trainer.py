"""Trainer: acting and learning in turn, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from troop.core.algorithm import Algorithm
from troop.core.batch import Transition
from troop.core.config import bounded
from troop.core.errors import TrainingFault
from troop.core.exploration import Exploration
from troop.core.flow import Recorder, ReplayBuffer
from troop.core.role import Metrics
from troop.roles.collector import Collector, EnvFactory

MAX_CONSECUTIVE_SKIPS = 10  # updates in a row that may be skipped for a loss that is not finite


@dataclass(frozen=True)
class UpdateSchedule:
    """How much is learned per vector step."""

    batch_size: int = bounded(32_768, low=1)
    """Rows per update, drawn equally from all envs."""
    updates_per_step: int = bounded(2, low=0)
    """Critic updates per vector step; 0 only collects."""
    overlap: bool = False
    """Learn while the simulator steps; the batch then misses the newest row."""


class Trainer:
    """Collects one vector step, stores it, and makes its updates; acts with the learner's own policy."""

    def __init__(
        self,
        world: EnvFactory,
        algorithm: Algorithm[Transition],
        recorder: Recorder,
        store: ReplayBuffer,
        exploration: Exploration,
        schedule: UpdateSchedule,
        save_store: bool = True,
        store_name: str = "replay",
    ) -> None:
        self.algorithm, self.store, self.schedule = algorithm, store, schedule
        self.collector = Collector(world, algorithm.policy, recorder, exploration)
        self.save_store, self.store_name = save_store, store_name
        self.version = 0
        self.notes: list[str] = []

    def step(self) -> Metrics:
        """One vector step and its updates."""
        self.collector.send()
        if self.schedule.overlap:
            learned = self._learn()
            return self._collect() | learned
        collected = self._collect()
        return collected | self._learn()

    def _collect(self) -> Metrics:
        pieces, metrics = self.collector.recv()
        for piece in pieces:
            self.store.add(piece)
        return metrics

    def _learn(self) -> Metrics:
        metrics: Metrics = {}
        for _ in range(self.schedule.updates_per_step):
            batch = self.store.sample(self.schedule.batch_size)
            if batch is None:
                break  # warming up
            outcome = self.algorithm.update(batch)
            if batch.index is not None and outcome.priority is not None:
                self._reprioritize(batch.index, outcome.priority)
            for name, value in outcome.metrics.items():
                both = name.startswith("count/") and name in metrics
                metrics[name] = metrics[name] + value if both else value
            self.version += 1
            metrics["count/updates"] = int(metrics.get("count/updates", 0)) + 1
            # Read rarely: on a GPU each look waits for everything queued before it.
            if (
                self.version % MAX_CONSECUTIVE_SKIPS == 0
                and self.algorithm.consecutive_skips >= MAX_CONSECUTIVE_SKIPS
            ):
                raise TrainingFault(
                    f"{int(self.algorithm.consecutive_skips)} updates in a row had a NaN or infinite loss, "
                    f"up to update {self.version:,}; lower the learning rates, or look at the env's rewards."
                )
        return metrics

    def _reprioritize(self, index: Tensor, priority: Tensor) -> None:
        priority = priority.cpu()
        if priority.isfinite().all():  # an update that was skipped says nothing of its rows
            self.store.reprioritize(index, priority)

    def latest(self, after: int) -> tuple[int, dict[str, Tensor]] | None:
        """The policy as it is now."""
        if self.version <= after:
            return None
        return self.version, self.algorithm.policy.state_dict()

    def gauges(self) -> Metrics:
        """What is worth showing but not counting."""
        read = {"rows": len(self.store), "capacity": self.store.capacity, "age": self.store.sample_age}
        return {f"{self.store_name}/{what}": value for what, value in read.items()}

    def close(self) -> None:
        """Let the env go."""
        self.collector.close()

    def state_dict(self) -> dict[str, Any]:
        """Learner, replay and env position."""
        return {
            "algorithm": self.algorithm.state_dict(),
            "replay": self.store.state_dict() if self.save_store else None,
            "collector": self.collector.state_dict(),
            "version": self.version,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on; what could not be taken back is said in `notes`."""
        self.algorithm.load_state_dict(state["algorithm"])
        self.version = int(state["version"])
        if state["replay"] is None:
            self.notes.append("the replay was not saved (--system.save-replay): it fills anew")
        elif dropped := self.store.load_state_dict(state["replay"]):
            self.notes.append(
                f"dropped {dropped:,} replay rows that have no place with these envs and capacity"
            )
        if not self.collector.load_state_dict(state["collector"]):
            self.store.end_streams()
            self.notes.append("the episodes under way were dropped; all envs start new ones")
