"""Gorila DQN: the paper's settings where it states them, and small networks tuned by measurement."""

from __future__ import annotations

from typing import Any

from troop import envs
from troop.algorithms import DQNConfig
from troop.core.batch import Transition
from troop.core.engine import Until
from troop.engines import Processes
from troop.engines.runtime import cores
from troop.experiment import Experiment
from troop.recipes import dqn
from troop.recipes.env import resolve_atari, with_threads
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.roles.parameter_server import AdaGradConfig
from troop.roles.update_schedule import UpdateSchedule
from troop.systems import Gorila

DEFAULT_ENV = "CartPole-v1"

# Nair et al. 2015, section 5: DQN as in Mnih et al. 2015; epsilon from 1 to 0.1 over the first million global
# updates, the target network copied every 60,000 of them; one update per step.
ATARI: dict[str, Any] = {
    "target_update_period": 60_000,
    "epsilon_steps": 1_000_000,
    "net": "nature",
    "hidden": (512,),
}
BUNDLES, SERVERS = 100, 31

SMALL: dict[str, Any] = dqn.SMALL | {
    "n_step": 3,  # 1 in the paper
    "tau": 0.0,
    "target_update_period": 500,  # global updates
    "double": True,
    "hidden": (64, 64),
    "epsilon_steps": 4_500,  # global updates: about 10,000 env steps of all bundles
}


def atari_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Return one bundle per core, up to the paper's hundred, and servers in the paper's proportion."""
    bundles = min(BUNDLES, max(2, cores() - 1))
    env = resolve_atari(args, 1)
    return Experiment(
        with_threads(env, 1),
        DQNConfig(**ATARI),
        Gorila(
            UpdateSchedule(32, env.envs),  # one update of 32 rows per env step
            replay_capacity=1_000_000,  # per bundle
            learning_starts=50_000 // env.envs,  # as DQN
            recreate_every=0,
            save_replay=False,  # a bundle that is restarted loses its replay, as in the paper
            bundles=bundles,
            servers=max(1, bundles * SERVERS // BUNDLES),
            adagrad=AdaGradConfig(lr=1e-3),  # not published
        ),
        Processes(),
        until=Until(env_steps=dqn.FRAMES // 4),
        device=args.device,
        recipe="gorila-dqn",
    )


def small_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Return two bundles and small networks for classic control, Catch and similar tasks."""
    env = envs.resolve(args.env or DEFAULT_ENV, args.envs or 4)
    return Experiment(
        with_threads(env, 1),
        DQNConfig(**SMALL),
        Gorila(
            UpdateSchedule(64, env.envs / 2),
            replay_capacity=50_000,
            learning_starts=max(1, 500 // env.envs),
            recreate_every=0,
            adagrad=AdaGradConfig(lr=0.02),
        ),
        Processes(),
        until=Until(minutes=10),
        device=args.device,
        recipe="gorila-dqn",
    )


def default_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Return the paper's settings for Atari games, small networks for other tasks."""
    is_atari = envs.family(args.env or DEFAULT_ENV) == "atari"
    return atari_experiment(args) if is_atari else small_experiment(args)


RECIPES = [
    Recipe(
        "gorila-dqn",
        "Gorila: bundles of actor, replay and learner share parameters through parameter servers",
        DEFAULT_ENV,
        default_experiment,
    )
]
