"""Trainer: acts and learns in turn, on one host."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from troop.core.algorithm import Algorithm
from troop.core.batch import Transition
from troop.core.config import bounded
from troop.core.exploration import Exploration
from troop.core.flow import Recorder, ReplayBuffer
from troop.core.role import Metrics
from troop.roles.collector import Collector, EnvFactory
from troop.roles.learner import check_consecutive_skips


@dataclass(frozen=True)
class UpdateSchedule:
    """Updates per vector step."""

    batch_size: int = bounded(32_768, low=1)
    """Rows per update, drawn equally from all envs."""
    updates_per_step: float = bounded(2.0, low=0)
    """Critic updates per vector step; 0.25 is one update in four vector steps, 0 only collects."""
    overlap: bool = False
    """Learn while the simulator steps; batches then do not contain the newest row."""

    def updates_after(self, step: int) -> int:
        """Return the number of updates that follow vector step number `step`, counted from 1.

        The updates of steps 1 to n sum up to n * updates_per_step, rounded down.
        """
        return self._total(step) - self._total(step - 1)

    def _total(self, steps: int) -> int:
        return math.floor(steps * self.updates_per_step + 1e-9)  # 100 * 0.29 is 28.999999999999996


class Trainer:
    """Makes one vector step and its updates per `step`; acts with the algorithm's own policy."""

    kind = "training"

    def __init__(
        self,
        env_factory: EnvFactory,
        algorithm: Algorithm[Transition],
        recorder: Recorder,
        replay: ReplayBuffer,
        exploration: Exploration,
        schedule: UpdateSchedule,
        save_replay: bool = True,
        replay_name: str = "replay",
    ) -> None:
        self.algorithm, self.replay, self.schedule = algorithm, replay, schedule
        self.collector = Collector(env_factory, algorithm.policy, recorder, exploration)
        self.save_replay, self.replay_name = save_replay, replay_name
        self.version = 0  # number of updates
        self.vector_steps = 0
        self.notes: list[str] = []

    def step(self) -> Metrics:
        """Make one vector step, add its rows to the replay, and make the updates."""
        self.vector_steps += 1
        self.collector.send()
        if self.schedule.overlap:
            update_metrics = self._update()
            return self._collect() | update_metrics
        metrics = self._collect()
        return metrics | self._update()

    def _collect(self) -> Metrics:
        rollouts, metrics = self.collector.recv()
        for rollout in rollouts:
            self.replay.add(rollout)
        return metrics

    def _update(self) -> Metrics:
        metrics: Metrics = {}
        for _ in range(self.schedule.updates_after(self.vector_steps)):
            batch = self.replay.sample(self.schedule.batch_size)
            if batch is None:
                break  # fewer rows than learning starts with
            result = self.algorithm.update(batch)
            if batch.index is not None and result.priority is not None:
                self._reprioritize(batch.index, result.priority)
            for name, value in result.metrics.items():
                summed = name.startswith("count/") and name in metrics
                metrics[name] = metrics[name] + value if summed else value
            self.version += 1
            metrics["count/updates"] = int(metrics.get("count/updates", 0)) + 1
            check_consecutive_skips(self.algorithm, self.version)
        return metrics

    def _reprioritize(self, index: Tensor, priority: Tensor) -> None:
        priority = priority.cpu()
        if priority.isfinite().all():  # the priorities of a skipped update are meaningless
            self.replay.reprioritize(index, priority)

    def latest(self, after: int) -> tuple[int, dict[str, Tensor]] | None:
        """Return the number of updates and the current policy weights; None if that number is `after`.

        Returns the current version even if it is older than the caller's: a restart restores a checkpoint.
        """
        return None if self.version == after else (self.version, self.algorithm.policy.state_dict())

    def gauges(self) -> Metrics:
        """Return size, capacity and sample age of the replay."""
        gauges = {
            "rows": len(self.replay),
            "capacity": self.replay.capacity,
            "sample_age": self.replay.sample_age,
        }
        return {f"{self.replay_name}/{name}": value for name, value in gauges.items()}

    def close(self) -> None:
        """Close the env."""
        self.collector.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of algorithm, replay and env; without `save_replay` only its reward scale."""
        scale = self.replay.reward_scale
        return {
            "algorithm": self.algorithm.state_dict(),
            "replay": self.replay.state_dict() if self.save_replay else None,
            "reward_scale": None if scale is None or self.save_replay else scale.state_dict(),
            "collector": self.collector.state_dict(),
            "version": self.version,
            "vector_steps": self.vector_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`; `notes` report what could not be restored."""
        self.algorithm.load_state_dict(state["algorithm"])
        self.version, self.vector_steps = int(state["version"]), int(state.get("vector_steps", 0))
        if state["replay"] is None:
            self.notes.append("the checkpoint has no replay (--system.save-replay): it starts empty")
            if self.replay.reward_scale is not None and state["reward_scale"] is not None:
                self.replay.reward_scale.load_state_dict(state["reward_scale"])
        elif dropped := self.replay.load_state_dict(state["replay"]):
            self.notes.append(f"dropped {dropped:,} replay rows that do not fit these envs and this capacity")
        if not self.collector.load_state_dict(state["collector"]):
            self.replay.end_streams()
            self.notes.append("episodes in progress were dropped; all envs start new ones")
