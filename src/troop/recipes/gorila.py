"""Gorila DQN: the paper's numbers where it gives them, and a small version found by measurement."""

from __future__ import annotations

import dataclasses
from typing import Any

from troop import envs
from troop.algorithms import DQNConfig
from troop.core.engine import Until
from troop.core.env import EnvConfig
from troop.engines import Processes
from troop.engines.runtime import cores
from troop.experiment import Experiment
from troop.recipes import dqn
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.roles.parameter_server import AdaGradConfig
from troop.roles.trainer import UpdateSchedule
from troop.systems import Gorila

# Nair et al. 2015, section 5: DQN as in Mnih et al. 2015; epsilon from 1 to 0.1 over the first million global
# updates, the target net every 60,000 of them; one update for each step.
ATARI: dict[str, Any] = {
    "target_period": 60_000,
    "epsilon_steps": 1_000_000,
    "net": "nature",
    "hidden": (512,),
}
BUNDLES, SERVERS = 100, 31

SMALL: dict[str, Any] = dqn.SMALL | {
    "n_step": 3,  # the paper has one
    "tau": 0.0,
    "target_period": 500,  # global updates
    "double": True,
    "hidden": (64, 64),
}


def _single_threaded(env: EnvConfig) -> EnvConfig:
    return dataclasses.replace(env, threads=1) if isinstance(env, envs.EnvPool) else env


def atari(wish: RecipeArgs) -> Experiment:
    """As many bundles as there are cores, up to the paper's hundred, and servers in its proportion."""
    bundles = min(BUNDLES, max(2, cores() - 1))
    env = envs.resolve(wish.env or "Pong-v5", wish.envs or 1)
    if isinstance(env, envs.EnvPool):
        env = dataclasses.replace(env, settings=envs.preprocessing(clip_rewards=True, life_loss=True))
    return Experiment(
        _single_threaded(env),
        DQNConfig(**ATARI),
        Gorila(
            UpdateSchedule(32, env.envs),  # one update of 32 rows for each step
            replay_capacity=1_000_000,  # in each bundle
            learning_starts=50_000 // env.envs,  # as DQN
            recreate_every=0,
            save_replay=False,  # a bundle that dies loses its replay, as in the paper
            bundles=bundles,
            servers=max(1, bundles * SERVERS // BUNDLES),
            adagrad=AdaGradConfig(lr=1e-3),  # not published
        ),
        Processes(),
        until=Until(env_steps=dqn.FRAMES // 4),
        device=wish.device,
        recipe="gorila-dqn",
    )


def small(wish: RecipeArgs) -> Experiment:
    """Two bundles and small nets for classic control, Catch and their like."""
    env = envs.resolve(wish.env or "CartPole-v1", wish.envs or 4)
    return Experiment(
        _single_threaded(env),
        DQNConfig(**SMALL),
        Gorila(
            UpdateSchedule(64, max(1, env.envs // 2)),
            replay_capacity=50_000,
            learning_starts=max(1, 500 // env.envs),
            recreate_every=0,
            adagrad=AdaGradConfig(lr=0.02),
        ),
        Processes(),
        until=Until(minutes=10),
        device=wish.device,
        recipe="gorila-dqn",
    )


def fitting(wish: RecipeArgs) -> Experiment:
    """Atari as in the paper, everything else small."""
    return atari(wish) if envs.family(wish.env or "CartPole-v1") == "atari" else small(wish)


RECIPES = [
    Recipe(
        "gorila-dqn",
        "Gorila: bundles of actor, replay and learner around parameter servers",
        "CartPole-v1",
        fitting,
    )
]
