"""Measurement: run a program on an engine for some seconds and compute rates after a warm-up."""

from __future__ import annotations

import dataclasses
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from troop.core.engine import Counters, Until
from troop.core.errors import TrainingFault
from troop.core.program import Program
from troop.core.system import Evaluation, RunSettings
from troop.engines import Inline, Processes, Ray

LOG_S = 0.2  # seconds between readings
NEVER_S = 1e9
NO_LIMIT = Until(minutes=NEVER_S)
STEPS_AND_UPDATES = ("env_steps", "updates")

RUN_SETTINGS = RunSettings(seed=0, device="cpu", evaluation=Evaluation(episodes=1, seconds=NEVER_S))
AnyEngine = Inline | Processes | Ray


@dataclass(frozen=True)
class Reading:
    """Counters and metrics at one time."""

    time_s: float  # monotonic clock
    counters: Counters
    metrics: dict[str, float]


@dataclass
class Measurement:
    """A RunObserver that stores readings for `seconds` and then requests a stop.

    It waits until each of `counters` is above 0 and each of `roles` has reported (on Ray some start later),
    then for `warmup` seconds.
    """

    seconds: float
    warmup: float = 1.0
    counters: tuple[str, ...] = ("env_steps",)
    roles: tuple[str, ...] = ()
    first_step_s: float | None = None  # monotonic clock
    warmup_start_s: float | None = None
    readings: list[Reading] = field(default_factory=list)
    done: bool = False

    def log(self, counters: Counters, metrics: dict[str, float]) -> None:
        """Store a reading if the warm-up is over."""
        now = time.monotonic()
        if counters.env_steps and self.first_step_s is None:
            self.first_step_s = now
        roles_ready = all(f"role/{name}/busy" in metrics for name in self.roles)
        if self.warmup_start_s is None and roles_ready and all(getattr(counters, n) for n in self.counters):
            self.warmup_start_s = now
        if self.warmup_start_s is None or now < self.warmup_start_s + self.warmup:
            return
        self.readings.append(Reading(now, counters, metrics))
        self.done = now - self.readings[0].time_s >= self.seconds

    def stop_requested(self) -> bool:
        """Return whether `seconds` have been measured."""
        return self.done

    def log_evaluation(self, counters: Counters, metrics: dict[str, float]) -> None:
        """Ignore evaluations."""

    def save(self, counters: Counters, state: dict[str, Any], last: bool) -> None:
        """Ignore checkpoints."""

    def note(self, text: str) -> None:
        """Raise TrainingFault: engines report deaths of roles here, which invalidate the measurement."""
        raise TrainingFault(f"During the benchmark: {text}")

    def rate(self, counter: str) -> float:
        """Return the increase of a counter per second from the first reading to the last."""
        first, last = self.readings[0], self.readings[-1]
        increase: float = getattr(last.counters, counter) - getattr(first.counters, counter)
        return increase / (last.time_s - first.time_s)

    def median(self, metric: str) -> float:
        """Return the median of a metric over all readings that have it."""
        return statistics.median(r.metrics[metric] for r in self.readings if metric in r.metrics)

    def increase_ratio(self, numerator: str, denominator: str) -> float:
        """Return the increase of one gauge divided by that of another, from the first reading to the last."""
        both = [r.metrics for r in self.readings if numerator in r.metrics and denominator in r.metrics]
        first, last = both[0], both[-1]
        return (last[numerator] - first[numerator]) / max(last[denominator] - first[denominator], 1e-9)


def measure(program: Program, engine: AnyEngine, measurement: Measurement) -> Measurement:
    """Run the program until the measurement is complete; return the measurement."""
    engine = dataclasses.replace(engine, log_s=LOG_S, checkpoint_s=NEVER_S)
    if not isinstance(engine, Inline):
        measurement.roles = tuple(program.nodes)
    engine.run(program, NO_LIMIT, 0, measurement)
    return measurement
