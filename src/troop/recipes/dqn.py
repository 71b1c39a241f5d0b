"""DQN to Rainbow: the papers' Atari numbers, and small versions for other tasks found by measurement."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

from troop import envs
from troop.algorithms import C51Config, DQNConfig, RainbowConfig
from troop.core.engine import Until
from troop.core.env import EnvConfig
from troop.engines import Inline
from troop.engines.runtime import cores
from troop.experiment import Experiment
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.replay.prioritized import PriorityConfig
from troop.roles.trainer import UpdateSchedule
from troop.systems import Sync

ATARI_ENVS = 32
FRAMES = 200_000_000  # the budget of the papers, in emulator frames: 4 for each step

UNIFORM = PriorityConfig()


@dataclass(frozen=True)
class Paper:
    """One paper's learner, its replay, and what it changes of the small version."""

    kind: type[DQNConfig]
    atari: dict[str, Any]
    small: dict[str, Any]
    priority: PriorityConfig = UNIFORM
    least: int = 50_000  # steps before the first update


# Mnih et al. 2015, extended data table 1, in dqn_zoo's units: RMSProp centred with lr 2.5e-4, decay 0.95 and
# epsilon 0.01 / 32^2; epsilon-greedy from 1 to 0.1 over the first million frames; the target net is copied
# every 10,000 steps, which is 2,500 updates at one in four steps.
DQN: dict[str, Any] = {}
# Van Hasselt et al. 2016, the tuned variant: epsilon to 0.01, target every 30,000 steps.
DOUBLE = {"double": True, "epsilon_end": 0.01, "target_period": 7500}
# Wang et al. 2016: Double DQN with two streams, lr 6.25e-5, gradients clipped to a norm of 10.
DUELING = DOUBLE | {"dueling": True, "lr": 6.25e-5, "max_grad_norm": 10.0}
# Schaul et al. 2016: Double DQN, a quarter of the learning rate (RMSProp's epsilon goes with its square).
PER = DOUBLE | {"lr": 6.25e-5, "eps": 0.01 / 32**2 / 16}
# Proportional: alpha 0.6, beta from 0.4 to 1 over training (12.5 million updates).
PRIORITY = PriorityConfig(alpha=0.6, beta=0.4, beta_end=1.0, beta_anneal_batches=FRAMES // 16)
# Bellemare et al. 2017: Adam 2.5e-4 with epsilon 0.01 / 32, 51 atoms in +-10, epsilon-greedy to 0.01.
C51: dict[str, Any] = {"epsilon_end": 0.01, "max_grad_norm": 10.0}
# Hessel et al. 2018, table 1: Adam 6.25e-5 with epsilon 1.5e-4, target every 32,000 frames, n = 3, sigma 0.5,
# alpha 0.5, beta from 0.4 to 1, learning from 80,000 frames on.
RAINBOW: dict[str, Any] = {}
RAINBOW_PRIORITY = dataclasses.replace(PRIORITY, alpha=0.5)

# Small nets for vectors and small images, found by measurement (docs/results/learning.md). One step, as in
# the papers before Rainbow; LayerNorm halves the frames, targets that follow faster halve them again.
SMALL: dict[str, Any] = {
    "optimizer": "adam",
    "lr": 1e-3,
    "eps": 1e-5,
    "hidden": (128, 128),
    "layer_norm": True,
    "tau": 0.02,
    "epsilon_end": 0.02,
    "epsilon_steps": 10_000,
    "max_grad_norm": 10.0,
}
# Rewards are scaled to the atoms, since nothing is known of the task.
SMALL_ATOMS = SMALL | {"normalize_rewards": True}
# Noise alone lets CartPole drift off its track for good: some epsilon at first. With the paper's 0.5 nets of
# this size hardly see their own values for the noise.
SMALL_RAINBOW = SMALL_ATOMS | {"noisy": 0.05, "epsilon_start": 1.0}

# Where rewards are large and episodes long: wider nets, smaller steps, slower targets, longer exploration;
# and three steps also where the paper has one, without which LunarLander takes far longer than minutes.
SMALL_FAMILY: dict[str, dict[str, Any]] = {
    "box2d": {
        "n_step": 3,
        "hidden": (256, 256),
        "lr": 5e-4,
        "tau": 0.005,
        "epsilon_end": 0.05,
        "epsilon_steps": 20_000,
    }
}

PAPERS = {
    "dqn": Paper(DQNConfig, DQN, SMALL),
    "double-dqn": Paper(DQNConfig, DOUBLE, SMALL | {"double": True}),
    "dueling-dqn": Paper(DQNConfig, DUELING, SMALL | {"double": True, "dueling": True}),
    "per-dqn": Paper(DQNConfig, PER, SMALL | {"double": True}, PRIORITY),
    "c51": Paper(C51Config, C51, SMALL_ATOMS),
    "rainbow": Paper(RainbowConfig, RAINBOW, SMALL_RAINBOW, RAINBOW_PRIORITY, least=20_000),
}


def _env(wish: RecipeArgs, first: str, copies: int) -> EnvConfig:
    return envs.resolve(wish.env or first, wish.envs or copies)


def atari(name: str, wish: RecipeArgs) -> Experiment:
    """The paper's numbers; several envs in step, with as many updates as the paper makes for their steps."""
    paper = PAPERS[name]
    env = _env(wish, "Pong-v5", ATARI_ENVS)
    if isinstance(env, envs.EnvPool):
        env = dataclasses.replace(env, settings=envs.preprocessing(clip_rewards=True, life_loss=True))
    return Experiment(
        env,
        paper.kind(**paper.atari),
        Sync(
            UpdateSchedule(32, max(1, env.envs // 4), overlap=True),  # one update every four steps
            replay_capacity=1_000_000,
            learning_starts=max(1, paper.least // env.envs),
            priority=paper.priority,
            recreate_every=0,  # games are long: a resumed run starts new ones
        ),
        Inline(),
        until=Until(env_steps=FRAMES // 4),
        device=wish.device,
        recipe=name,
    )


def small(name: str, wish: RecipeArgs) -> Experiment:
    """Small nets for classic control, Box2D, Catch and their like."""
    paper = PAPERS[name]
    env_id = wish.env or "CartPole-v1"
    env = envs.resolve(env_id, wish.envs or 8)
    learning = max(1, cores() // 2)
    if isinstance(env, envs.EnvPool):
        env = dataclasses.replace(env, threads=max(1, cores() - learning))
    priority = (
        dataclasses.replace(paper.priority, beta_anneal_batches=50_000) if paper.priority.alpha else UNIFORM
    )
    return Experiment(
        env,
        paper.kind(**paper.small | SMALL_FAMILY.get(envs.family(env_id), {})),
        Sync(
            UpdateSchedule(128, max(1, env.envs // 2), overlap=True),
            100_000,
            learning_starts=max(1, 1000 // env.envs),
            priority=priority,
        ),
        Inline(threads=learning),
        until=Until(minutes=10),
        device=wish.device,
        recipe=name,
    )


# What pays on a few cores: the net of 2013, double, dueling, three steps, priorities, larger steps.
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
    "target_period": 500,
    "epsilon_steps": 60_000,
}


def atari_cpu(wish: RecipeArgs) -> Experiment:
    """Atari in an hour or a night on a few cores."""
    env = _env(wish, "Pong-v5", 16)
    learning = max(1, cores() // 2)
    if isinstance(env, envs.EnvPool):
        settings = envs.preprocessing(clip_rewards=True, life_loss=True)
        env = dataclasses.replace(env, settings=settings, threads=max(1, cores() - learning))
    return Experiment(
        env,
        DQNConfig(**ATARI_CPU),
        Sync(
            UpdateSchedule(32, max(1, env.envs // 4), overlap=True),
            replay_capacity=200_000,
            learning_starts=max(1, 5_000 // env.envs),
            priority=PriorityConfig(alpha=0.5, beta=0.4, beta_end=1.0, beta_anneal_batches=200_000),
            recreate_every=0,
        ),
        Inline(threads=learning),
        until=Until(minutes=60),
        device=wish.device,
        recipe="dqn-cpu",
    )


def fitting(name: str, wish: RecipeArgs) -> Experiment:
    """Atari as in the paper, everything else small."""
    return atari(name, wish) if envs.family(wish.env or "CartPole-v1") == "atari" else small(name, wish)


RECIPES = [
    Recipe(
        "dqn",
        "DQN: the paper's numbers on Atari, small nets elsewhere",
        "CartPole-v1",
        partial(fitting, "dqn"),
    ),
    Recipe(
        "double-dqn",
        "DQN whose online net chooses and target net judges",
        "CartPole-v1",
        partial(fitting, "double-dqn"),
    ),
    Recipe(
        "dueling-dqn",
        "Double DQN with value and advantage streams",
        "CartPole-v1",
        partial(fitting, "dueling-dqn"),
    ),
    Recipe("per-dqn", "Double DQN from a prioritized replay", "CartPole-v1", partial(fitting, "per-dqn")),
    Recipe("c51", "DQN with categorical values", "CartPole-v1", partial(fitting, "c51")),
    Recipe("dqn-cpu", "Atari on a few cores: double, dueling, three steps, priorities", "Pong-v5", atari_cpu),
    Recipe("rainbow", "All six improvements together", "CartPole-v1", partial(fitting, "rainbow")),
]
