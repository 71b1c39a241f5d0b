"""Ape-X DQN and Ape-X DPG: the paper's settings, and small networks for a few cores."""

from __future__ import annotations

from typing import Any

from troop import envs
from troop.algorithms import DQNConfig, TD3Config
from troop.core.batch import Transition
from troop.core.engine import Until
from troop.engines import Processes
from troop.engines.runtime import cores
from troop.experiment import Experiment
from troop.recipes import dqn, fast_td3
from troop.recipes.cpu import with_auto_compile
from troop.recipes.env import resolve_atari, resolve_env, with_threads
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.replay.prioritized import PriorityConfig
from troop.roles.learner import LearnerConfig
from troop.systems import Apex

DEFAULT_ENV, DPG_DEFAULT_ENV = "CartPole-v1", "CartpoleSwingup-v1"

# Horgan et al. 2018, section 4.1 and appendix C, unless another source is named.
ATARI: dict[str, Any] = {
    "gamma": 0.99,
    "n_step": 3,
    "double": True,
    "dueling": True,
    "loss": "squared",
    "target_update_period": 2500,  # training batches
    "optimizer": "rmsprop_tf",
    "lr": 0.00025 / 4,
    "decay": 0.95,
    "eps": 1.5e-7,
    "centered": True,
    "max_grad_norm": 40.0,
    "net": "nature",
    "hidden": (512,),
}
PRIORITY = PriorityConfig(alpha=0.6, beta=0.4, beta_end=0.4)  # beta is constant
ACTORS = 360  # one core each
DPG_ACTORS = 64

# Section 4.2 and appendix D: DDPG with Adam 1e-4, three-step targets, noise of 0.3 in all actors. The paper
# copies the targets every 100 batches; tau 0.01 gives targets of the same mean age. ReLU instead of its tanh.
DPG: dict[str, Any] = fast_td3.DDPG_PAPER | {
    "random_steps": 0,
    "n_step": 3,
    "tau": 0.01,
    "std_min": 0.3,
    "std_max": 0.3,
    "actor_lr": 1e-4,
    "critic_lr": 1e-4,
    "actor_hidden": (300, 200),
    "critic_hidden": (400, 300),
    "actor_carries_critic": True,
    "action_gradient_clip": 1.0,  # dQ/da, per element
}

# A few cores: networks and learning rates of the small DQN.
SMALL: dict[str, Any] = dqn.SMALL | {"double": True, "dueling": True, "n_step": 3, "tau": 0.01}


def _actor_count(paper: int) -> int:
    """Return the paper's number of actors, or one per core that learner and replay leave, at least two."""
    return min(paper, max(2, cores() - 2))


def atari_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Return the paper's settings; with fewer cores than actors, each actor steps several envs."""
    actors = _actor_count(ACTORS)
    env = resolve_atari(args, min(16, max(1, ACTORS // actors)))
    return Experiment(
        with_threads(env, 1),
        DQNConfig(**ATARI),
        Apex(
            actors,
            chunk_length=max(1, 50 // env.envs),  # about 50 rows per message
            weight_sync_steps=100,  # 400 frames
            # Section 4.1; the period of publication is that of a known re-implementation.
            learner=LearnerConfig(512, prefetch=16, publish_every=25),
            replay_capacity=2_000_000,
            learning_starts=50_000,
            samples_per_insert=0.0,  # the paper does not limit the ratio
            priority=PRIORITY,
            save_replay=False,  # it fills again within minutes
        ),
        Processes(),
        until=Until(env_steps=22_800_000_000 // 4),
        device=args.device,
        recipe="apex-dqn",
    )


def small_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Return four actors and small networks for classic control, Box2D, Catch and similar tasks."""
    env_id = args.env or DEFAULT_ENV
    return Experiment(
        with_threads(envs.resolve(env_id, args.envs or 8), 1),
        DQNConfig(**SMALL),
        Apex(
            4,
            overlap=False,  # these envs step faster than the policy acts
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
        device=args.device,
        recipe="apex-dqn",
    )


def dqn_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Return the paper's settings for Atari games, small networks for other tasks."""
    is_atari = envs.family(args.env or DEFAULT_ENV) == "atari"
    return atari_experiment(args) if is_atari else small_experiment(args)


def dpg_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Return the paper's learner on a GPU, FastTD3's small networks and categorical critics on a CPU."""
    paper = not args.on_cpu
    actors = _actor_count(DPG_ACTORS) if paper else 4
    env, family = resolve_env(args, DPG_DEFAULT_ENV, max(1, DPG_ACTORS // actors) if paper else 16)
    return Experiment(
        with_threads(env, 1),
        TD3Config(**DPG) if paper else with_auto_compile(TD3Config(**fast_td3.cpu_settings(family))),
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
        device=args.device,
        recipe="apex-dpg",
    )


RECIPES = [
    Recipe(
        "apex-dqn",
        "Ape-X DQN: the paper's settings on Atari, small networks elsewhere",
        DEFAULT_ENV,
        dqn_experiment,
    ),
    Recipe(
        "apex-dpg",
        "Ape-X DPG for continuous actions: many actors, prioritized replay, one learner",
        DPG_DEFAULT_ENV,
        dpg_experiment,
    ),
]
