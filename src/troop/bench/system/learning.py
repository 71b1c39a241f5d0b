"""Time to a threshold with increasing numbers of actors on slow simulators, as in Ape-X's scaling figure."""

from __future__ import annotations

import math
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from troop.algorithms import DQNConfig
from troop.bench.system import learning_figure
from troop.bench.system.delayed_env import DelayedEnvConfig
from troop.bench.table import BenchResult
from troop.core.batch import Transition
from troop.core.engine import Until
from troop.core.system import Evaluation
from troop.engines import Processes
from troop.envs import EnvPool
from troop.experiment import Experiment
from troop.recipes.apex import PRIORITY, SMALL
from troop.roles.learner import LearnerConfig
from troop.runs import curve
from troop.systems import Apex

ACTORS = (1, 2, 4, 8)
TARGET = 475.0  # return
LIMIT_MINUTES = 10.0
ENV = DelayedEnvConfig(EnvPool("CartPole-v1", envs=4, threads=1), seconds=0.02)


@dataclass(frozen=True)
class LearningRun:
    """One run: training seconds to the threshold, and all evaluations."""

    actors: int
    seed: int
    seconds: float  # infinite if the threshold was not reached
    curve: list[tuple[float, float]]  # seconds, return


def experiment(actors: int, seed: int) -> Experiment[Transition]:
    """Return Ape-X DQN on CartPole with slow simulators; only the number of actors and the seed vary."""
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
        until=Until(minutes=LIMIT_MINUTES, target=TARGET),
        evaluation=Evaluation(episodes=16, seconds=2.0),
        seed=seed,
        recipe="apex-dqn",
    )


def train(actors: int, seed: int) -> LearningRun:
    """Train until the threshold or the time limit."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        result = experiment(actors, seed).run(path, quiet=True)
        rows = [row for row in curve.read_rows(path) if "eval/return_mean" in row]
    reached = result.counters.target_reached_s
    points = [(float(row["wall_s"]), float(row["eval/return_mean"])) for row in rows]
    return LearningRun(actors, seed, math.inf if reached is None else reached, points)


def run(figure: Path, seeds: int = 3) -> list[BenchResult]:
    """Train every number of actors with every seed and draw the figure; one result per number of actors."""
    runs = {actors: [train(actors, seed) for seed in range(1, seeds + 1)] for actors in ACTORS}
    learning_figure.draw(runs, TARGET, figure)
    medians = {actors: statistics.median(run.seconds for run in group) for actors, group in runs.items()}
    return [
        BenchResult(
            f"time to {TARGET:.0f} on a slow CartPole, {actors} actors",
            f"{medians[actors]:.0f} s",
            f"one actor {medians[1]:.0f} s",
            medians[1] / medians[actors],
        )
        for actors in ACTORS
    ]
