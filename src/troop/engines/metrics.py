"""Tally: sums counts, averages the rest, knows the time."""

from __future__ import annotations

import dataclasses
import time

import torch
from torch import Tensor

from troop.core.engine import Counters, Until
from troop.core.role import Metrics


class Tally:
    """Where a run stands. Metrics stay tensors until they are read for a log line."""

    def __init__(self, start: Counters) -> None:
        fields = {field.name for field in dataclasses.fields(Counters)}
        self._counts = {name: getattr(start, name) for name in fields}
        self._tensors: dict[str, Tensor] = {}
        self._pending: dict[str, list[float | int | Tensor]] = {}
        self._clock = time.monotonic()
        self._hit = False  # the target, since this process began

    def add(self, metrics: Metrics) -> None:
        """Count what is to be counted and keep the rest for the next line."""
        for name, value in metrics.items():
            if not name.startswith("count/"):
                self._pending.setdefault(name, []).append(value)
            elif isinstance(value, Tensor):
                held = self._tensors.get(name[6:])
                self._tensors[name[6:]] = value if held is None else held + value
            else:
                self._counts[name[6:]] = self._counts.get(name[6:], 0) + value

    def trained(self) -> None:
        """The time since the last call was training."""
        self._counts["wall_s"] += self._lap()

    def evaluated(self) -> None:
        """The time since the last call was evaluation or saving, not training."""
        self._counts["evaluation_s"] += self._lap()

    def _lap(self) -> float:
        now = time.monotonic()
        lap, self._clock = now - self._clock, now
        return lap

    @property
    def env_steps(self) -> int:
        """Env steps so far."""
        return int(self._counts["env_steps"])

    @property
    def wall_s(self) -> float:
        """Training seconds so far."""
        return float(self._counts["wall_s"])

    def reached(self, until: Until) -> bool:
        """Whether steps or minutes are used up."""
        steps, minutes = until.env_steps, until.minutes
        return bool(
            (steps is not None and self._counts["env_steps"] >= steps)
            or (minutes is not None and self._counts["wall_s"] >= 60 * minutes)
            or self._hit
        )

    def judge(self, returned: float, until: Until) -> None:
        """Note the time if this evaluation is the first to reach the target."""
        if until.target is not None and returned >= until.target:
            self._hit = True
            if self._counts["target_reached_s"] is None:
                self._counts["target_reached_s"] = self._counts["wall_s"]

    @property
    def hit(self) -> bool:
        """Whether the target was reached since this process began."""
        return self._hit

    def counters(self) -> Counters:
        """A reading of all counts."""
        for name, tensor in self._tensors.items():
            self._counts[name] = self._counts.get(name, 0) + int(tensor)
        self._tensors.clear()
        fields = [field.name for field in dataclasses.fields(Counters)]
        return Counters(**{name: self._counts[name] for name in fields})

    def means(self) -> dict[str, float]:
        """Everything kept since the last call, averaged."""
        kept, self._pending = self._pending, {}
        return {name: _mean(values) for name, values in kept.items()}


def _mean(values: list[float | int | Tensor]) -> float:
    if isinstance(values[0], Tensor):
        return float(torch.stack([torch.as_tensor(v, dtype=torch.float32) for v in values]).mean())
    return float(sum(values)) / len(values)
