"""R2D2 under Ape-X and under SEED: the paper's settings for Atari games, and small networks."""

from __future__ import annotations

import dataclasses
from typing import Any

from troop import envs
from troop.algorithms import R2D2Config
from troop.core.batch import Trajectory
from troop.core.engine import Until
from troop.core.env import EnvConfig
from troop.engines import Processes
from troop.engines.runtime import cores
from troop.experiment import Experiment
from troop.recipes.env import resolve_env, with_threads
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.replay.sequences import SEQUENCE_PRIORITY, ServedReplay
from troop.roles.learner import LearnerConfig
from troop.systems import SEED, Apex

DEFAULT_ENV = "Cue-v0"
ACTORS = 256  # one core each
STEPS = 10_000_000_000 // 4  # 10 billion frames, four per env step

# Kapturowski et al. 2019, section 2.3 and table 2: n 5, gamma 0.997, sequences of 80 steps after a burn-in of
# 40, one every 40 steps, Adam 1e-4 with epsilon 1e-3, target every 2500 updates, LSTM of 512; the rest as
# Ape-X: gradient norm 40.
ATARI: dict[str, Any] = {}
# The authors of SEED (Espeholt et al. 2019) begin a sequence every 80 steps and clip gradients to norm 80.
SEED_ATARI: dict[str, Any] = {"overlap": 40, "max_grad_norm": 80.0}

# Small networks, found by measurement (docs/explanation/algorithms/r2d2.md). Episodes of small tasks are
# short: sequences are, too, and each step is learned from once per sample.
SMALL: dict[str, Any] = {
    "sequence_length": 40,
    "overlap": 8,
    "burn_in": 8,
    "gamma": 0.99,
    "lr": 1e-3,
    "eps": 1e-5,
    "max_grad_norm": 10.0,
    "target_update_period": 100,
    "epsilon_steps": 20_000,
    "features": 64,
    "core_size": 64,
    "head": 64,
}
SMALL_REPLAY = ServedReplay(
    capacity=10_000, learning_starts=64, samples_per_insert=8.0, priority=SEQUENCE_PRIORITY, save=True
)


def with_last_step(env: EnvConfig) -> EnvConfig:
    """Return the env whose observations contain the last action and the last reward."""
    extended: EnvConfig = dataclasses.replace(env, last_step=True)  # type: ignore[type-var]
    return extended


def resolve_game(args: RecipeArgs, default_envs: int) -> EnvConfig:
    """Return an Atari game as it is scored: rewards are not clipped, and a lost life ends no episode."""
    env = envs.resolve(args.env or "Pong-v5", args.envs or default_envs)
    if isinstance(env, envs.EnvPool):
        env = dataclasses.replace(env, settings=envs.preprocessing(training=False))
    return env


def r2d2_atari(args: RecipeArgs) -> Experiment[Trajectory]:
    """Return the paper's settings; with fewer cores than actors, each actor steps several envs."""
    actors = min(ACTORS, max(2, cores() - 2))
    env = resolve_game(args, min(16, max(1, ACTORS // actors)))
    return Experiment(
        with_last_step(with_threads(env, 1)),
        R2D2Config(**ATARI),
        Apex(
            actors,
            weight_sync_steps=400,
            learner=LearnerConfig(64, prefetch=4, publish_every=10),
            replay_capacity=100_000,  # 4 million observations, 40 new ones per sequence
            learning_starts=5_000,
            samples_per_insert=0.0,  # the paper does not limit the ratio
            priority=SEQUENCE_PRIORITY,
            save_replay=False,
        ),
        Processes(),
        until=Until(env_steps=STEPS),
        device=args.device,
        recipe="r2d2",
    )


def r2d2(args: RecipeArgs) -> Experiment[Trajectory]:
    """Return the paper's settings for Atari games, small networks for other tasks."""
    if envs.family(args.env or DEFAULT_ENV) == "atari":
        return r2d2_atari(args)
    env, _ = resolve_env(args, DEFAULT_ENV, 8)
    return Experiment(
        with_last_step(with_threads(env, 1)),
        R2D2Config(**SMALL),
        Apex(
            2,
            overlap=False,  # these envs step faster than the policy acts
            weight_sync_steps=100,
            learner=LearnerConfig(32, prefetch=2, publish_every=5),
            replay_capacity=SMALL_REPLAY.capacity,
            learning_starts=SMALL_REPLAY.learning_starts,
            samples_per_insert=SMALL_REPLAY.samples_per_insert,
            priority=SMALL_REPLAY.priority,
        ),
        Processes(),
        until=Until(minutes=10),
        device=args.device,
        recipe="r2d2",
    )


def seed_r2d2(args: RecipeArgs) -> Experiment[Trajectory]:
    """Return the settings of SEED's authors for Atari games, small networks for other tasks."""
    runners = max(2, cores() - 1)
    if envs.family(args.env or DEFAULT_ENV) == "atari":
        env, settings, until = resolve_game(args, 16), ATARI | SEED_ATARI, Until(env_steps=STEPS)
        system = SEED(runners, batch_size=64)
    else:
        (env, _), settings, until = resolve_env(args, DEFAULT_ENV, 8), SMALL, Until(minutes=10)
        system = SEED(runners, batch_size=32, prefetch=2, publish_every=5, replay=SMALL_REPLAY)
    return Experiment(
        with_last_step(with_threads(env, 1)),
        R2D2Config(**settings),
        system,
        Processes(),
        until=until,
        device=args.device,
        recipe="seed-r2d2",
    )


RECIPES = [
    Recipe(
        "r2d2",
        "R2D2 (Kapturowski et al. 2019): LSTM Q-network over replayed sequences, Ape-X's actors",
        DEFAULT_ENV,
        r2d2,
    ),
    Recipe(
        "seed-r2d2",
        "SEED RL's R2D2 (Espeholt et al. 2019): central inference, sequence replay",
        DEFAULT_ENV,
        seed_r2d2,
    ),
]
