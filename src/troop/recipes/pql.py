"""PQL, PQL-D and PQL with SAC: the paper's numbers, and small versions for a few cores by measurement."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from troop import envs
from troop.algorithms import SACConfig, TD3Config
from troop.core.engine import Until
from troop.engines import Processes
from troop.engines.runtime import cores
from troop.experiment import Experiment
from troop.recipes import fast_td3, sac
from troop.recipes.cpu import CPU_PROFILES, CpuProfile, resolved
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.systems import PQL

DEFAULT_ENV = "CartpoleSwingup-v1"

# Li et al. 2023, table of hyperparameters and authors' code (August 2023), for Isaac Gym.
NETS: dict[str, Any] = {
    "gamma": 0.99,
    "n_step": 3,
    "tau": 0.05,
    "actor_hidden": (512, 256, 128),
    "critic_hidden": (512, 256, 128),
    "activation": "elu",
    "actor_lr": 5e-4,
    "critic_lr": 5e-4,
    "weight_decay": 0.01,  # AdamW's default
    "max_grad_norm": 0.5,
    "normalize_observations": True,
    "normalize_rewards": True,  # the authors scale them by hand: 0.01 for Ant, Humanoid and both hands
}
DDPG = NETS | {
    "atoms": 0,
    "policy_noise": 0.8,
    "noise_clip": 0.2,  # so four target actions in five are at its rails
    "std_min": 0.05,
    "std_max": 0.8,
    "clip_actions": True,
}
DISTRIBUTIONAL = {"atoms": 51, "v_min": -10.0, "v_max": 10.0, "categorical_min": "elementwise_min"}
SAC = NETS | {"alpha_lr": 5e-3, "log_std_min": -5.0, "log_std_max": 5.0}
PAPER: dict[str, TD3Config | SACConfig] = {
    "pql": TD3Config(**DDPG),
    "pql-d": TD3Config(**DDPG | DISTRIBUTIONAL),
    "pql-sac": SACConfig(**SAC),
}


def paper(name: str, wish: RecipeArgs) -> Experiment:
    """The paper's numbers: thousands of envs, 8 critic updates a vector step, 2 for each of the policy."""
    env, _ = resolved(wish, DEFAULT_ENV, 4096)
    return Experiment(
        env,
        PAPER[name],
        PQL(beta_av=8.0, beta_pv=2.0, batch_size=8192, replay_capacity=5_000_000, learning_starts=32),
        Processes(),
        until=Until(minutes=60),  # the hands have 80 there, ANYmal 30
        device=wish.device,
        recipe=name,
    )


# Returns that scalar critics can regress on, whatever the rewards.
SCALAR: dict[str, Any] = {"atoms": 0, "normalize_rewards": True}
# Critic updates a vector step: as many as in sync, or two where that was tried, since critics have a core to
# themselves. Categorical ones keep to one: with two, WalkerWalk is at 912 after 6,000 updates with a seed and
# stays at 460 for 17,000 with another (docs/results/learning.md).
BETA_AV = {"dmc": 2.0}


def learner(name: str, family: str) -> TD3Config | SACConfig:
    """Nets and steps of the small FastTD3 and SAC."""
    if name == "pql-sac":
        return SACConfig(**sac.SMALL)
    numbers = fast_td3.CPU_FAMILY.get(family, fast_td3.CPU_UNKNOWN)
    return TD3Config(**numbers if name == "pql-d" else numbers | SCALAR)


def small(name: str, wish: RecipeArgs) -> Experiment:
    """Small nets and batches for a few cores, in the rhythm that fits the env's family."""
    beat = CPU_PROFILES.get(envs.family(wish.env or DEFAULT_ENV), CpuProfile())
    env, family = resolved(wish, DEFAULT_ENV, beat.envs)
    usual = float(beat.updates)
    if isinstance(env, envs.EnvPool):
        env = dataclasses.replace(env, threads=max(1, cores() - 2))
    return Experiment(
        env,
        learner(name, family),
        PQL(
            beta_av=usual if name == "pql-d" else BETA_AV.get(family, usual),
            beta_pv=2.0,
            batch_size=beat.batch,
            replay_capacity=1_000_000,
            learning_starts=beat.warmup,
        ),
        Processes(),
        until=Until(minutes=10),
        device=wish.device,
        recipe=name,
    )


def fitting(name: str, wish: RecipeArgs) -> Experiment:
    """The paper's numbers on a GPU, the small ones on a CPU."""
    return small(name, wish) if wish.device.startswith("cpu") else paper(name, wish)


RECIPES = [
    Recipe("pql", "PQL: an actor, critics and a policy, all at once", DEFAULT_ENV, partial(fitting, "pql")),
    Recipe("pql-d", "PQL-D: PQL with categorical critics", DEFAULT_ENV, partial(fitting, "pql-d")),
    Recipe("pql-sac", "PQL with the two halves of SAC", DEFAULT_ENV, partial(fitting, "pql-sac")),
]
