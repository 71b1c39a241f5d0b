"""Many actors whose simulators are elsewhere: whether the orchestration keeps up with all of them."""

from __future__ import annotations

from dataclasses import dataclass

from troop.bench.system.afar import Accelerator, Simulator
from troop.bench.system.trial import BOTH, SETTING, AnyEngine, Trial, tried
from troop.bench.table import Line
from troop.core.program import Program
from troop.engines import Processes, Ray
from troop.roles.learner import LearnerConfig
from troop.systems import Apex

SIMULATOR = Simulator(envs=4, seconds=0.005)
COUNTS = {"processes": (1, 2, 4, 8, 16, 32), "ray": (1, 2, 4, 8, 16)}


@dataclass(frozen=True)
class Rates:
    """Of a whole system."""

    env_steps: float
    updates: float


ENGINES: dict[str, AnyEngine] = {"processes": Processes(threads=1), "ray": Ray(threads=1)}


def program(actors: int) -> Program:
    """Ape-X, running free."""
    system = Apex(
        actors,
        overlap=False,
        chunk_length=200,  # a second
        weight_sync_steps=2 * 200 * SIMULATOR.envs,
        learner=LearnerConfig(64, prefetch=4, publish_every=50),
        replay_capacity=max(10_000, actors * 4_000),
        learning_starts=100,
        initial_priority="max",
        save_replay=False,
    )
    return system.program(Accelerator(seconds=0.04), SIMULATOR, SETTING)


def rates(name: str, actors: int, seconds: float) -> Rates:
    """Env steps and updates a second with that many actors."""
    trial = Trial(seconds, warm=4.0, moving=BOTH)
    tried(program(actors), ENGINES[name], trial)
    return Rates(trial.rate("env_steps"), trial.rate("updates"))


def run(seconds: float = 5.0, engines: tuple[str, ...] = ("processes", "ray")) -> list[Line]:
    """Each count of actors against one actor."""
    lines = []
    for name in engines:
        alone = rates(name, 1, seconds)
        for actors in COUNTS[name][1:]:
            found = rates(name, actors, seconds)
            lines += [
                Line(
                    f"{name}, {actors} actors",
                    f"{found.env_steps:.0f} env steps/s",
                    f"{actors} x {alone.env_steps:.0f}",
                    found.env_steps / actors / alone.env_steps,
                    ">= 0.9",
                ),
                Line(
                    f"{name}, {actors} actors",
                    f"{found.updates:.1f} updates/s",
                    f"with one actor {alone.updates:.1f}",
                    found.updates / alone.updates,
                    "0.9 to 1.1",
                ),
            ]
    return lines
