"""Ape-X with increasing numbers of actors whose simulators only sleep: the cost of the orchestration."""

from __future__ import annotations

from troop.bench.system.measurement import (
    RUN_SETTINGS,
    STEPS_AND_UPDATES,
    AnyEngine,
    Measurement,
    measure,
)
from troop.bench.system.sleeping import SleepingLearnerConfig
from troop.bench.system.sleeping_env import SleepingEnvConfig
from troop.bench.table import BenchResult
from troop.core.program import Program
from troop.engines import Processes, Ray
from troop.roles.learner import LearnerConfig
from troop.systems import Apex

ENV = SleepingEnvConfig(envs=4, seconds=0.005)
CHUNK_LENGTH = 200  # vector steps: one second
ACTOR_COUNTS = {"processes": (1, 2, 4, 8, 16, 32), "ray": (1, 2, 4, 8, 16)}
ENGINES: dict[str, AnyEngine] = {"processes": Processes(threads=1), "ray": Ray(threads=1)}


def program(actors: int) -> Program:
    """Return Ape-X without a limit on the ratio of updates to steps."""
    system = Apex(
        actors,
        overlap=False,
        chunk_length=CHUNK_LENGTH,
        weight_sync_steps=2 * CHUNK_LENGTH * ENV.envs,
        learner=LearnerConfig(64, prefetch=4, publish_every=50),
        replay_capacity=max(10_000, actors * 4_000),
        learning_starts=100,
        initial_priority="max",
        save_replay=False,
    )
    return system.program(SleepingLearnerConfig(seconds=0.04), ENV, RUN_SETTINGS)


def rates(engine: str, actors: int, seconds: float) -> tuple[float, float]:
    """Return env steps and updates per second."""
    measurement = Measurement(seconds, warmup=4.0, counters=STEPS_AND_UPDATES)
    measure(program(actors), ENGINES[engine], measurement)
    return measurement.rate("env_steps"), measurement.rate("updates")


def run(seconds: float = 5.0, engines: tuple[str, ...] = ("processes", "ray")) -> list[BenchResult]:
    """Compare each number of actors with one actor."""
    results = []
    for engine in engines:
        steps_of_one, updates_of_one = rates(engine, 1, seconds)
        for actors in ACTOR_COUNTS[engine][1:]:
            steps, updates = rates(engine, actors, seconds)
            results += [
                BenchResult(
                    f"{engine}, {actors} actors",
                    f"{steps:.0f} env steps/s",
                    f"{actors} x {steps_of_one:.0f}",
                    steps / actors / steps_of_one,
                    ">= 0.9",
                ),
                BenchResult(
                    f"{engine}, {actors} actors",
                    f"{updates:.1f} updates/s",
                    f"one actor {updates_of_one:.1f}",
                    updates / updates_of_one,
                    "0.9 to 1.1",
                ),
            ]
    return results
