"""RunProgress: the counters and the training clock of a run, and timers for what is due on a schedule."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from troop.core.engine import Counters, Until
from troop.core.program import Schedule
from troop.core.role import Metrics
from troop.engines.metrics import COUNT_PREFIX, MetricAggregator


class RunProgress:
    """Counts env steps, updates and seconds of a run, and decides when the run is done."""

    def __init__(self, start: Counters) -> None:
        self._totals: dict[str, Any] = dataclasses.asdict(start)
        self._metrics = MetricAggregator()
        self._clock = time.monotonic()
        self._target_reached = False

    def add(self, metrics: Metrics) -> None:
        """Add the metrics of one step: counts to the counters, the rest to the next `read_means`."""
        self._metrics.add(metrics)

    def add_training_time(self) -> None:
        """Count the seconds since the last call of either method as training."""
        self._totals["wall_s"] += self._lap()

    def add_evaluation_time(self) -> None:
        """Count the seconds since the last call of either method as evaluation or checkpointing."""
        self._totals["evaluation_s"] += self._lap()

    def _lap(self) -> float:
        now = time.monotonic()
        lap, self._clock = now - self._clock, now
        return lap

    @property
    def env_steps(self) -> int:
        """Env steps so far."""
        return int(self._totals["env_steps"] + self._metrics.plain_count(f"{COUNT_PREFIX}env_steps"))

    @property
    def wall_s(self) -> float:
        """Training seconds so far."""
        return float(self._totals["wall_s"])

    def reached(self, until: Until) -> bool:
        """Return whether the run is done: env steps or minutes are used up, or the target was reached."""
        steps, minutes = until.env_steps, until.minutes
        return (
            (steps is not None and self.env_steps >= steps)
            or (minutes is not None and self.wall_s >= 60 * minutes)
            or self._target_reached
        )

    def over_minutes(self, until: Until) -> bool:
        """Return whether the minutes are used up, with the seconds since the last call that added time."""
        seconds = self.wall_s + time.monotonic() - self._clock
        return until.minutes is not None and seconds >= 60 * until.minutes

    def add_evaluation(self, mean_return: float, until: Until) -> None:
        """Record the time if this evaluation is the first of the run to reach the target."""
        if until.target is not None and mean_return >= until.target:
            self._target_reached = True
            if self._totals["target_reached_s"] is None:
                self._totals["target_reached_s"] = self._totals["wall_s"]

    @property
    def target_reached(self) -> bool:
        """Whether an evaluation reached the target since this process started."""
        return self._target_reached

    def counters(self) -> Counters:
        """Return all counters; reads the counts that are tensors."""
        for name, count in self._metrics.read_counts().items():
            field = name.removeprefix(COUNT_PREFIX)
            if field in self._totals:
                self._totals[field] += count
        return Counters(**self._totals)

    def read_means(self) -> dict[str, float]:
        """Return and reset the means of all metrics that are not counts."""
        return self._metrics.read_means()


class ScheduleTimer:
    """Is due once per interval of a schedule, in env steps or in training seconds."""

    def __init__(self, schedule: Schedule, progress: RunProgress) -> None:
        self.schedule, self.progress = schedule, progress
        self._last = self._now()

    def _now(self) -> float:
        return self.progress.wall_s if self.schedule.env_steps is None else self.progress.env_steps

    def due(self) -> bool:
        """Return True at most once per interval."""
        interval = self.schedule.seconds if self.schedule.env_steps is None else self.schedule.env_steps
        if self._now() - self._last < interval:
            return False
        self._last = self._now()
        return True
