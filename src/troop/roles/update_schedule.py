"""UpdateSchedule and UpdatePace: how many updates follow a vector step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from troop.core.config import bounded

GAIN = 0.05  # change of the updates per step, per step, for a wait of one update
TOLERATED_WAIT = 0.25  # in updates: receiving a step takes some time even if the simulator is ready


@dataclass(frozen=True)
class UpdateSchedule:
    """Updates per vector step."""

    batch_size: int = bounded(32_768, low=1)
    """Rows per update, drawn equally from all envs."""
    updates_per_step: float = bounded(2.0, low=0)
    """Critic updates per vector step; 0.25 is one update in four vector steps, 0 only collects."""
    overlap: bool = False
    """Learn while the simulator steps; batches then do not contain the newest row."""
    max_updates_per_step: float = bounded(0.0, low=0)
    """With `overlap`: make more updates, up to this number per vector step, while the learner would wait for
    a slow simulator; 0 does not. The number depends on measured times, so that two runs differ."""

    @property
    def adaptive(self) -> bool:
        """Whether the number of updates follows measured times."""
        return self.overlap and self.max_updates_per_step > self.updates_per_step

    def updates_after(self, step: int) -> int:
        """Return the number of updates that follow vector step number `step`, counted from 1.

        The updates of steps 1 to n sum up to n * updates_per_step, rounded down.
        """
        return self._total(step) - self._total(step - 1)

    def _total(self, steps: int) -> int:
        return math.floor(steps * self.updates_per_step + 1e-9)  # 100 * 0.29 is 28.999999999999996


class UpdatePace:
    """Raises the updates per vector step while the learner waits for the simulator, and lowers them after.

    At equilibrium the learner waits for `TOLERATED_WAIT` updates per vector step: simulator and learner are
    both busy almost all the time.
    """

    def __init__(self, schedule: UpdateSchedule) -> None:
        self.schedule = schedule
        self.rate = schedule.updates_per_step
        self.credit = 0.0  # updates that are due, below 1 after each step

    def updates_after(self, step: int) -> int:
        """Return the number of updates that follow vector step number `step`, counted from 1."""
        if not self.schedule.adaptive:
            return self.schedule.updates_after(step)
        self.credit += self.rate
        updates = math.floor(self.credit + 1e-9)
        self.credit -= updates
        return updates

    def observe(self, wait_s: float, update_s: float) -> None:
        """Take the times of one vector step: waiting for the simulator, and a mean update."""
        if not self.schedule.adaptive or update_s <= 0:
            return
        change = GAIN * (min(wait_s / update_s, 2.0) - TOLERATED_WAIT)
        low, high = self.schedule.updates_per_step, self.schedule.max_updates_per_step
        self.rate = min(max(self.rate + change, low), high)

    def state_dict(self) -> dict[str, Any]:
        """Return the current rate."""
        return {"rate": self.rate, "credit": self.credit}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict` as far as this schedule allows it."""
        low, high = self.schedule.updates_per_step, self.schedule.max_updates_per_step
        if self.schedule.adaptive:
            self.rate, self.credit = min(max(float(state["rate"]), low), high), float(state["credit"])
