"""Trainer: acts and learns in turn, on one host."""

from __future__ import annotations

import time
from typing import Any, Generic, TypeVar

from torch import Tensor

from troop.core.algorithm import Algorithm
from troop.core.batch import Trajectory, Transition
from troop.core.exploration import Exploration
from troop.core.flow import PrioritizedSource, Recorder, Store
from troop.core.role import Checkpointable, Metrics
from troop.roles.auto_compile import AutoCompileConfig, AutoCompiler
from troop.roles.collector import Collector, EnvFactory
from troop.roles.learner import check_consecutive_skips
from troop.roles.update_schedule import UpdatePace, UpdateSchedule

Recorded = TypeVar("Recorded")  # what the recorder returns and the store receives: Rollout or Trajectory
Batch = TypeVar("Batch", bound=Transition | Trajectory)


class Trainer(Generic[Recorded, Batch]):
    """Makes one vector step and its updates per `step`; acts with the algorithm's own policy.

    With a replay it makes `schedule.updates_per_step` updates after each vector step. With a queue of
    trajectories it makes one update whenever a trajectory is complete.
    """

    kind = "training"

    def __init__(
        self,
        env_factory: EnvFactory,
        algorithm: Algorithm[Batch],
        recorder: Recorder[Recorded],
        replay: Store[Recorded, Batch],
        exploration: Exploration,
        schedule: UpdateSchedule,
        save_replay: bool = True,
        replay_name: str = "replay",
        compilation: AutoCompileConfig | None = None,
    ) -> None:
        self.algorithm, self.replay, self.schedule = algorithm, replay, schedule
        self.pace = UpdatePace(schedule)
        self.recorder = recorder
        self.collector = Collector(env_factory, algorithm.policy, recorder, exploration)
        self.save_replay, self.replay_name = save_replay, replay_name
        self.version = self.collector.version = 0  # number of updates
        self.vector_steps = 0
        self.notes, self.files = self.collector.notes, self.collector.files
        self.compiler = AutoCompiler(algorithm, compilation, self.notes)

    def step(self) -> Metrics:
        """Make one vector step, add its rows to the replay, and make the updates."""
        self.vector_steps += 1
        self.collector.send()
        if self.schedule.overlap:
            update_metrics = self._update()
            updates, update_s = update_metrics.get("count/updates", 0), update_metrics["count/learn_s"]
            metrics = self._collect()
            if updates:
                self.pace.observe(self.collector.wait_s, float(update_s) / int(updates))
            return metrics | update_metrics
        metrics = self._collect()
        return metrics | self._update()

    def _collect(self) -> Metrics:
        rollouts, metrics = self.collector.recv()
        for rollout in rollouts:
            self.replay.add(rollout)
        return metrics

    def _update(self) -> Metrics:
        metrics: Metrics = {}
        start = time.perf_counter()
        for _ in range(self.pace.updates_after(self.vector_steps)):
            batch = self.replay.sample(self.schedule.batch_size)
            if batch is None:
                break  # fewer rows than learning starts with
            result = self.compiler.update(batch)
            if batch.index is not None and result.priority is not None:
                self._reprioritize(batch.index, result.priority)
            for name, value in result.metrics.items():
                summed = name.startswith("count/") and name in metrics
                metrics[name] = metrics[name] + value if summed else value
            self.version += 1
            self.collector.version = self.version
            metrics["count/updates"] = int(metrics.get("count/updates", 0)) + 1
            check_consecutive_skips(self.algorithm, self.version)
        metrics["count/learn_s"] = time.perf_counter() - start
        return metrics

    def _reprioritize(self, index: Tensor, priority: Tensor) -> None:
        priority = priority.cpu()
        if isinstance(self.replay, PrioritizedSource) and priority.isfinite().all():  # else it was skipped
            self.replay.reprioritize(index, priority)

    def latest(self, after: int) -> tuple[int, dict[str, Tensor]] | None:
        """Return the number of updates and the current policy weights; None if that number is `after`.

        Returns the current version even if it is older than the caller's: a restart restores a checkpoint.
        """
        return None if self.version == after else (self.version, self.algorithm.policy.state_dict())

    def gauges(self) -> Metrics:
        """Return size, capacity and sample age of the replay, and whether losses are compiled."""
        if not isinstance(self.replay, PrioritizedSource):  # a queue, empty after each update
            return self.compiler.gauges("policy")
        gauges = {
            "rows": len(self.replay),
            "capacity": self.replay.capacity,
            "sample_age": self.replay.sample_age,
        }
        replay_gauges: Metrics = {f"{self.replay_name}/{name}": value for name, value in gauges.items()}
        return replay_gauges | self.compiler.gauges("policy")

    def close(self) -> None:
        """Close the env, and end the process that compiles losses."""
        self.collector.close()
        self.compiler.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of algorithm, replay and env; without `save_replay` only its reward scale."""
        scale = self.replay.reward_scale
        return {
            "algorithm": self.algorithm.state_dict(),
            "replay": self.replay.state_dict() if self.save_replay else None,
            "reward_scale": None if scale is None or self.save_replay else scale.state_dict(),
            "collector": self.collector.state_dict(),
            "recorder": self.recorder.state_dict() if isinstance(self.recorder, Checkpointable) else None,
            "compiler": self.compiler.state_dict(),
            "version": self.version,
            "vector_steps": self.vector_steps,
            "pace": self.pace.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`; `notes` report what could not be restored."""
        self.algorithm.load_state_dict(state["algorithm"])
        self.version, self.vector_steps = int(state["version"]), int(state.get("vector_steps", 0))
        if "pace" in state:
            self.pace.load_state_dict(state["pace"])
        if "compiler" in state:
            self.compiler.load_state_dict(state["compiler"])
        if state["replay"] is None:
            self.notes.append("the checkpoint has no replay (--system.save-replay): it starts empty")
            if self.replay.reward_scale is not None and state["reward_scale"] is not None:
                self.replay.reward_scale.load_state_dict(state["reward_scale"])
        elif dropped := self.replay.load_state_dict(state["replay"]):
            self.notes.append(f"dropped {dropped:,} replay rows that do not fit these envs and this capacity")
        self.collector.version = self.version
        continued, recorded = self.collector.load_state_dict(state["collector"]), state.get("recorder")
        if not continued:  # what was recorded belongs to the old episodes
            self.replay.end_streams()
            self.notes.append("episodes in progress were dropped; all envs start new ones")
        elif recorded is not None and isinstance(self.recorder, Checkpointable):
            self.recorder.load_state_dict(recorded)
