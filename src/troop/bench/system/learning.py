"""Ape-X's scaling figure in small: time to a threshold with more and more actors on slow simulators."""

from __future__ import annotations

import math
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from troop.algorithms import DQNConfig
from troop.bench.system import learning_figure
from troop.bench.system.slowed import Slowed
from troop.bench.table import Line
from troop.core.engine import Until
from troop.engines import Processes
from troop.envs import EnvPool
from troop.experiment import Experiment
from troop.recipes.apex import PRIORITY, SMALL
from troop.roles.learner import LearnerConfig
from troop.runs import curve
from troop.systems import Apex
from troop.systems.settings import Evaluation

ACTORS = (1, 2, 4, 8)
TARGET, LIMIT = 475.0, 10.0  # return, and minutes after which a run is given up
ENV = Slowed(EnvPool("CartPole-v1", envs=4, threads=1), seconds=0.02)


@dataclass(frozen=True)
class Learned:
    """One run: when the threshold was reached, and the evaluations on the way."""

    actors: int
    seed: int
    seconds: float  # infinite if it was not
    curve: list[tuple[float, float]]  # seconds, return


def experiment(actors: int, seed: int) -> Experiment:
    """Ape-X DQN on a CartPole with slow simulators; only the number of actors differs."""
    return Experiment(
        ENV,
        DQNConfig(**SMALL),
        Apex(
            actors,
            overlap=False,
            chunk_length=10,
            weight_sync_steps=100,
            learner=LearnerConfig(128, prefetch=2, publish_every=5),
            replay_capacity=100_000,
            learning_starts=1_000,
            samples_per_insert=16.0,
            priority=PRIORITY,
            save_replay=False,
        ),
        Processes(threads=1),
        until=Until(minutes=LIMIT, target=TARGET),
        evaluation=Evaluation(episodes=16, seconds=2.0),
        seed=seed,
        recipe="apex-dqn",
    )


def learned(actors: int, seed: int) -> Learned:
    """Train until the threshold."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        result = experiment(actors, seed).run(path, quiet=True)
        rows = [row for row in curve.rows(path) if "eval/return_mean" in row]
    reached = result.counters.target_reached_s
    shown = [(float(row["wall_s"]), float(row["eval/return_mean"])) for row in rows]
    return Learned(actors, seed, math.inf if reached is None else reached, shown)


def run(figure: Path, seeds: int = 3) -> list[Line]:
    """A line for each number of actors, and the figure."""
    found = {actors: [learned(actors, seed) for seed in range(1, seeds + 1)] for actors in ACTORS}
    learning_figure.draw(found, TARGET, figure)
    medians = {actors: statistics.median(x.seconds for x in runs) for actors, runs in found.items()}
    return [
        Line(
            f"{TARGET:.0f} on a slow CartPole, {actors} actors",
            f"{medians[actors]:.0f} s",
            f"one actor {medians[1]:.0f} s",
            medians[1] / medians[actors],
        )
        for actors in ACTORS
    ]
