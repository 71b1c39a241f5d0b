"""DQN to Rainbow: the papers' settings for Atari, and small networks for other tasks tuned by measurement."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

from troop import envs
from troop.algorithms import C51Config, DQNConfig, RainbowConfig
from troop.core.batch import Transition
from troop.core.engine import Until
from troop.engines import Inline
from troop.engines.runtime import cores
from troop.experiment import Experiment
from troop.recipes.cpu import with_auto_compile
from troop.recipes.env import learner_threads, resolve_atari, with_threads
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.replay.prioritized import PriorityConfig
from troop.roles.update_schedule import UpdateSchedule
from troop.systems import Sync

DEFAULT_ENV = "CartPole-v1"
ATARI_ENVS = 32
FRAMES = 200_000_000  # training budget of the papers, in emulator frames: 4 per env step

UNIFORM = PriorityConfig()


@dataclass(frozen=True)
class DQNVariant:
    """The settings of one paper on Atari, and those of small networks for other tasks."""

    config: type[DQNConfig] | type[C51Config] | type[RainbowConfig]
    atari: dict[str, Any]
    small: dict[str, Any]
    priority: PriorityConfig = UNIFORM
    learning_starts: int = 50_000  # env steps before the first update


# Mnih et al. 2015, extended data table 1, in dqn_zoo's units: RMSProp centred with lr 2.5e-4, decay 0.95 and
# epsilon 0.01 / 32^2; epsilon-greedy from 1 to 0.1 over a million env steps (four million frames) from the
# first update on, after 50,000 env steps; the target network is copied every 10,000 env steps, which are
# 2,500 updates at one update per four env steps.
DQN: dict[str, Any] = {}
# Van Hasselt et al. 2016, the tuned variant: epsilon to 0.01, target every 30,000 steps.
DOUBLE = {"double": True, "epsilon_end": 0.01, "target_update_period": 7500}
# Wang et al. 2016: Double DQN with value and advantage streams, lr 6.25e-5, gradient norm clipped to 10.
DUELING = DOUBLE | {"dueling": True, "lr": 6.25e-5, "max_grad_norm": 10.0}
# Schaul et al. 2016: Double DQN, a quarter of the learning rate (RMSProp's epsilon scales with its square).
PER = DOUBLE | {"lr": 6.25e-5, "eps": 0.01 / 32**2 / 16}
# Proportional: alpha 0.6, beta from 0.4 to 1 over training (12.5 million updates).
PRIORITY = PriorityConfig(alpha=0.6, beta=0.4, beta_end=1.0, beta_anneal_batches=FRAMES // 16)
# Bellemare et al. 2017: Adam 2.5e-4 with epsilon 0.01 / 32, 51 atoms in +-10, epsilon-greedy to 0.01.
C51: dict[str, Any] = {"epsilon_end": 0.01, "max_grad_norm": 10.0}
# Hessel et al. 2018, table 1: Adam 6.25e-5 with epsilon 1.5e-4, target every 32,000 frames, n = 3, sigma 0.5,
# alpha 0.5, beta from 0.4 to 1, first update after 80,000 frames.
RAINBOW: dict[str, Any] = {}
RAINBOW_PRIORITY = dataclasses.replace(PRIORITY, alpha=0.5)

# Small networks for vectors and small images; the measurements are in docs/explanation/results/generality.md.
# Where the papers before Rainbow have one-step targets these have three steps, without which LunarLander
# takes far longer than minutes. Random actions are repeated, for up to an episode: steps in independent
# directions never leave the valley of MountainCar.
SMALL: dict[str, Any] = {
    "optimizer": "adam",
    "lr": 5e-4,
    "eps": 1e-5,
    "hidden": (256, 256),
    "layer_norm": True,
    "n_step": 3,
    "tau": 0.005,
    "epsilon_end": 0.05,
    "epsilon_steps": 20_000,
    "epsilon_repeats": 0,
    "max_grad_norm": 10.0,
}
# Rewards are scaled so that returns fit the atoms, because the scale of the task is unknown. Then also the
# loss has the same scale on all tasks and takes a larger learning rate.
SMALL_ATOMS = SMALL | {"normalize_rewards": True, "lr": 1e-3}
# With noise alone CartPole learns to drift off its track, so epsilon starts at 1. At the paper's sigma of 0.5
# the noise dominates the values of networks of this size.
SMALL_RAINBOW = SMALL_ATOMS | {"noisy": 0.05, "epsilon_start": 1.0}

VARIANTS = {
    "dqn": DQNVariant(DQNConfig, DQN, SMALL),
    "double-dqn": DQNVariant(DQNConfig, DOUBLE, SMALL | {"double": True}),
    "dueling-dqn": DQNVariant(DQNConfig, DUELING, SMALL | {"double": True, "dueling": True}),
    "per-dqn": DQNVariant(DQNConfig, PER, SMALL | {"double": True}, PRIORITY),
    "c51": DQNVariant(C51Config, C51, SMALL_ATOMS),
    "rainbow": DQNVariant(RainbowConfig, RAINBOW, SMALL_RAINBOW, RAINBOW_PRIORITY, learning_starts=20_000),
}


def atari_experiment(name: str, args: RecipeArgs) -> Experiment[Transition]:
    """Return the paper's settings, with several envs and as many updates per env step as the paper makes."""
    variant = VARIANTS[name]
    env = resolve_atari(args, ATARI_ENVS)
    return Experiment(
        env,
        variant.config(**variant.atari, epsilon_delay=variant.learning_starts),
        Sync(
            UpdateSchedule(32, env.envs / 4, overlap=True),  # one update per four env steps
            replay_capacity=1_000_000,
            learning_starts=max(1, variant.learning_starts // env.envs),
            priority=variant.priority,
            recreate_every=0,  # games are long: a resumed run starts new ones
        ),
        Inline(),
        until=Until(env_steps=FRAMES // 4),
        device=args.device,
        recipe=name,
    )


def small_experiment(name: str, args: RecipeArgs) -> Experiment[Transition]:
    """Return small networks for classic control, Box2D, Catch and similar tasks."""
    variant = VARIANTS[name]
    env_id = args.env or DEFAULT_ENV
    env = envs.resolve(env_id, args.envs or 8)
    threads = learner_threads()
    priority = variant.priority
    if priority.alpha:
        priority = dataclasses.replace(priority, beta_anneal_batches=50_000)
    return Experiment(
        with_threads(env, cores() - threads),
        with_auto_compile(variant.config(**variant.small)),
        Sync(
            UpdateSchedule(128, env.envs / 2, overlap=True),
            100_000,
            learning_starts=max(1, 1000 // env.envs),
            priority=priority,
        ),
        Inline(threads=threads),
        until=Until(minutes=10),
        device=args.device,
        recipe=name,
    )


# Fast on a few cores: the network of Mnih et al. 2013, double, dueling, three-step targets, prioritized
# replay, larger learning rate.
ATARI_CPU: dict[str, Any] = SMALL | {
    "layer_norm": False,
    "double": True,
    "dueling": True,
    "n_step": 3,
    "net": "nips",
    "hidden": (256,),
    "lr": 2e-4,
    "eps": 1.5e-4,
    "tau": 0.0,
    "target_update_period": 500,
    "epsilon_steps": 60_000,
}


def atari_cpu_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Return settings that learn Atari games in hours on a few cores."""
    env, threads = resolve_atari(args, 16), learner_threads()
    return Experiment(
        with_threads(env, cores() - threads),
        DQNConfig(**ATARI_CPU),
        Sync(
            UpdateSchedule(32, env.envs / 4, overlap=True),
            replay_capacity=200_000,
            learning_starts=max(1, 5_000 // env.envs),
            priority=PriorityConfig(alpha=0.5, beta=0.4, beta_end=1.0, beta_anneal_batches=200_000),
            recreate_every=0,
        ),
        Inline(threads=threads),
        until=Until(minutes=60),
        device=args.device,
        recipe="dqn-cpu",
    )


def default_experiment(name: str, args: RecipeArgs) -> Experiment[Transition]:
    """Return the paper's settings for Atari games, small networks for other tasks."""
    is_atari = envs.family(args.env or DEFAULT_ENV) == "atari"
    return atari_experiment(name, args) if is_atari else small_experiment(name, args)


def _recipe(name: str, description: str) -> Recipe:
    return Recipe(name, description, DEFAULT_ENV, partial(default_experiment, name))


RECIPES = [
    _recipe("dqn", "DQN: the paper's settings on Atari, small networks elsewhere"),
    _recipe("double-dqn", "DQN with targets that select actions by the online network"),
    _recipe("dueling-dqn", "Double DQN with value and advantage streams"),
    _recipe("per-dqn", "Double DQN with prioritized replay"),
    _recipe("c51", "C51: DQN with categorical value distributions"),
    Recipe(
        "dqn-cpu",
        "Atari on a few cores: double, dueling, three-step targets, prioritized replay",
        "Pong-v5",
        atari_cpu_experiment,
    ),
    _recipe("rainbow", "Rainbow: DQN with all six improvements"),
]
