"""Ape-X DQN and Ape-X DPG: the paper's numbers, and small versions for a few cores found by measurement."""

from __future__ import annotations

import dataclasses
from typing import Any

from troop import envs
from troop.algorithms import DQNConfig, TD3Config
from troop.core.engine import Until
from troop.core.env import EnvConfig
from troop.engines import Processes
from troop.engines.runtime import cores
from troop.experiment import Experiment
from troop.recipes import dqn, fast_td3
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.replay.prioritized import PriorityConfig
from troop.roles.learner import LearnerConfig
from troop.systems import Apex

# Horgan et al. 2018, section 4.1 and appendix C, unless another source is named.
ATARI: dict[str, Any] = {
    "gamma": 0.99,
    "n_step": 3,
    "double": True,
    "dueling": True,
    "loss": "squared",
    "target_period": 2500,  # training batches
    "optimizer": "rmsprop_tf",
    "lr": 0.00025 / 4,
    "decay": 0.95,
    "eps": 1.5e-7,
    "centered": True,
    "max_grad_norm": 40.0,
    "net": "nature",
    "hidden": (512,),
}
PRIORITY = PriorityConfig(alpha=0.6, beta=0.4, beta_end=0.4)  # beta stays
ACTORS = 360  # one core each
DPG_ACTORS = 64

# Section 4.2 and appendix D: DDPG with Adam 1e-4, three steps, noise of 0.3 for all. Targets are copied every
# 100 batches there; a share of 0.01 a batch is as old on average. ReLU where the paper has tanh.
DPG: dict[str, Any] = fast_td3.DDPG | {
    "n_step": 3,
    "tau": 0.01,
    "std_min": 0.3,
    "std_max": 0.3,
    "actor_lr": 1e-4,
    "critic_lr": 1e-4,
    "actor_hidden": (300, 200),
    "critic_hidden": (400, 300),
    "actor_carries_critic": True,
}

# A few cores: nets and steps of the small DQN.
SMALL: dict[str, Any] = dqn.SMALL | {"double": True, "dueling": True, "n_step": 3, "tau": 0.01}


def _acting(most: int) -> int:
    """Actors: as in the paper where there are the cores, else one for each that is left, at least two."""
    return min(most, max(2, cores() - 2))


def _single_threaded(env: EnvConfig) -> EnvConfig:
    """An actor is one core's worth: its envs step on one thread."""
    return dataclasses.replace(env, threads=1) if isinstance(env, envs.EnvPool) else env


def atari(wish: RecipeArgs) -> Experiment:
    """The paper's learner; rungs of the ladder beyond the number of cores become envs of one actor."""
    actors = _acting(ACTORS)
    env = envs.resolve(wish.env or "Pong-v5", wish.envs or min(16, max(1, ACTORS // actors)))
    if isinstance(env, envs.EnvPool):
        env = dataclasses.replace(env, settings=envs.preprocessing(clip_rewards=True, life_loss=True))
    return Experiment(
        _single_threaded(env),
        DQNConfig(**ATARI),
        Apex(
            actors,
            chunk_length=max(1, 50 // env.envs),  # about 50 rows a message
            weight_sync_steps=100,  # 400 frames
            learner=LearnerConfig(
                512, prefetch=16, publish_every=25
            ),  # section 4.1; publishing as a known re-implementation
            replay_capacity=2_000_000,
            learning_starts=50_000,
            samples_per_insert=0.0,  # both sides ran free
            priority=PRIORITY,
            save_replay=False,  # it fills again within minutes
        ),
        Processes(),
        until=Until(env_steps=22_800_000_000 // 4),
        device=wish.device,
        recipe="apex-dqn",
    )


def small(wish: RecipeArgs) -> Experiment:
    """Four actors and small nets for classic control, Box2D, Catch and their like."""
    first = wish.env or "CartPole-v1"
    env = envs.resolve(first, wish.envs or 8)
    return Experiment(
        _single_threaded(env),
        DQNConfig(**SMALL | dqn.SMALL_FAMILY.get(envs.family(first), {})),
        Apex(
            4,
            overlap=False,  # such envs step faster than a policy chooses
            chunk_length=10,
            weight_sync_steps=100,
            learner=LearnerConfig(128, prefetch=2, publish_every=5),
            replay_capacity=100_000,
            learning_starts=1_000,
            samples_per_insert=32.0,
            priority=PRIORITY,
        ),
        Processes(),
        until=Until(minutes=10),
        device=wish.device,
        recipe="apex-dqn",
    )


def choices(wish: RecipeArgs) -> Experiment:
    """Atari as in the paper, everything else small."""
    return atari(wish) if envs.family(wish.env or "CartPole-v1") == "atari" else small(wish)


def dpg(wish: RecipeArgs) -> Experiment:
    """The paper's learner on a GPU; on a CPU the small categorical twin critics of FastTD3."""
    first = wish.env or "CartpoleSwingup-v1"
    paper = not wish.device.startswith("cpu")
    actors = _acting(DPG_ACTORS) if paper else 4
    env = envs.resolve(first, wish.envs or (max(1, DPG_ACTORS // actors) if paper else 16))
    numbers = DPG if paper else fast_td3.CPU_FAMILY.get(envs.family(first), fast_td3.CPU_UNKNOWN)
    return Experiment(
        _single_threaded(env),
        TD3Config(**numbers),
        Apex(
            actors,
            chunk_length=10,
            weight_sync_steps=100,
            learner=LearnerConfig(256, prefetch=4, publish_every=10),  # 256 as in the paper
            replay_capacity=1_000_000,
            learning_starts=10_000 if paper else 2_000,
            samples_per_insert=0.0 if paper else 2.0,
            priority=PRIORITY,
        ),
        Processes(),
        until=Until(minutes=10),
        device=wish.device,
        recipe="apex-dpg",
    )


RECIPES = [
    Recipe(
        "apex-dqn", "Ape-X DQN: the paper's numbers on Atari, small nets elsewhere", "CartPole-v1", choices
    ),
    Recipe("apex-dpg", "Ape-X DPG: actors with noise of their own, one learner", "CartpoleSwingup-v1", dpg),
]
