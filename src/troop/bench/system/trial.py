"""Trial: a program run on an engine for some seconds, and its rates after a warm-up."""

from __future__ import annotations

import dataclasses
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from troop.core.engine import Counters, Until
from troop.core.errors import TrainingFault
from troop.core.program import Program
from troop.engines import Inline, Processes, Ray
from troop.core.system import Evaluation, RunSettings

LOG_S = 0.2  # seconds between readings
NEVER = 1e9
FOREVER = Until(minutes=NEVER)
BOTH = ("env_steps", "updates")

SETTING = RunSettings(seed=0, device="cpu", evaluation=Evaluation(episodes=1, seconds=NEVER))
AnyEngine = Inline | Processes | Ray


@dataclass(frozen=True)
class Reading:
    """Counts and metrics at one moment."""

    when: float
    counters: Counters
    metrics: dict[str, float]


@dataclass
class Trial:
    """A Watch that keeps readings for `seconds`, from `warm` seconds after all of `moving` have moved.

    All `roles` must be there by then: on Ray some come later than others.
    """

    seconds: float
    warm: float = 1.0
    moving: tuple[str, ...] = ("env_steps",)
    roles: tuple[str, ...] = ()
    first_step: float | None = None  # when it was seen
    began: float | None = None
    readings: list[Reading] = field(default_factory=list)
    done: bool = False

    def log(self, counters: Counters, metrics: dict[str, float]) -> None:
        """Keep it, if it is time."""
        now = time.monotonic()
        if counters.env_steps and self.first_step is None:
            self.first_step = now
        there = all(f"role/{name}/busy" in metrics for name in self.roles)
        if self.began is None and there and all(getattr(counters, count) for count in self.moving):
            self.began = now
        if self.began is None or now < self.began + self.warm:
            return
        self.readings.append(Reading(now, counters, metrics))
        self.done = now - self.readings[0].when >= self.seconds

    def stop_requested(self) -> bool:
        """Whether the time is over."""
        return self.done

    def evaluated(self, counters: Counters, metrics: dict[str, float]) -> None:
        """Not wanted here."""

    def save(self, counters: Counters, state: dict[str, Any], last: bool) -> None:
        """Not wanted here."""

    def note(self, text: str) -> None:
        """A role that dies spoils what is measured."""
        raise TrainingFault(f"During the benchmark: {text}")

    def rate(self, count: str) -> float:
        """Of a counter, a second."""
        first, last = self.readings[0], self.readings[-1]
        counted: float = getattr(last.counters, count) - getattr(first.counters, count)
        return counted / (last.when - first.when)

    def median(self, metric: str) -> float:
        """Of all readings of a metric."""
        return statistics.median(r.metrics[metric] for r in self.readings if metric in r.metrics)

    def value_and_grad(self, over: str, under: str) -> float:
        """How much of one gauge went by for each unit of the other, from the first reading to the last."""
        both = [r.metrics for r in self.readings if over in r.metrics and under in r.metrics]
        return (both[-1][over] - both[0][over]) / max(both[-1][under] - both[0][under], 1e-9)


def tried(program: Program, engine: AnyEngine, trial: Trial) -> Trial:
    """The trial, after the program was run until it was over."""
    engine = dataclasses.replace(engine, log_s=LOG_S, checkpoint_s=NEVER)
    if not isinstance(engine, Inline):
        trial.roles = tuple(program.nodes)
    engine.run(program, FOREVER, 0, trial)
    return trial
