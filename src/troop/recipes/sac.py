"""SAC and FastSAC: the numbers of the papers, and small versions for CPUs found by measurement."""

from __future__ import annotations

from typing import Any

from troop.algorithms import SACConfig
from troop.core.engine import Until
from troop.engines import Inline
from troop.experiment import Experiment
from troop.recipes.cpu import cpu_experiment, resolved
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.roles.trainer import UpdateSchedule
from troop.systems import Sync

# Haarnoja et al. 2018 (1812.05905), table 1: 256-256 ReLU, Adam 3e-4, tau 0.005, entropy -dim(A), one update
# of 256 rows for each env step, a million rows kept. The learner's are SACConfig's own.
DEFAULT_ENV = "Pendulum-v1"

# holosoma (2512.01996), locomotion of G1 and T1: 4096 envs, 1024 rows each, 8 updates a step of 8192 rows.
FASTSAC: dict[str, Any] = {
    "gamma": 0.97,
    "tau": 0.125,
    "policy_delay": 4,
    "atoms": 101,
    "v_min": -20.0,
    "v_max": 20.0,
    "clipped_double_q": False,  # and so the policy climbs the mean
    "actor_hidden": (512, 256, 128),
    "critic_hidden": (768, 384, 192),
    "activation": "silu",
    "layer_norm": True,
    "actor_init": 0.0,
    "log_std_max": 0.0,
    "alpha_init": 0.001,
    "target_entropy_ratio": 0.0,
    "beta2": 0.95,
    "weight_decay": 0.001,
    "normalize_observations": True,
}

# Small nets for CPUs: FastTD3's small sizes and steps.
SMALL: dict[str, Any] = {
    "n_step": 3,
    "actor_hidden": (128, 64, 32),
    "critic_hidden": (256, 128, 64),
    "layer_norm": True,
    "policy_delay": 2,
    "tau": 0.05,
    "actor_lr": 1e-3,
    "critic_lr": 1e-3,
    "alpha_lr": 3e-3,
    "alpha_init": 0.01,
    "normalize_observations": True,
    "normalize_rewards": True,
}


# Their rewards punish shaking and falling: gamma, steps and windows as FastTD3 has them; not measured here.
ROBOTS: dict[str, Any] = {"gamma": 0.97, "n_step": 1, "actor_lr": 3e-4, "critic_lr": 3e-4}


def small_learner(family: str) -> SACConfig:
    """What suits the family."""
    return SACConfig(**SMALL | (ROBOTS if family == "playground" else {}))


def paper(wish: RecipeArgs) -> Experiment:
    """Few envs, as many updates as env steps, a thousand rows before the first."""
    env, _ = resolved(wish, DEFAULT_ENV, 8)
    return Experiment(
        env,
        SACConfig(),
        Sync(
            UpdateSchedule(256, env.envs),
            replay_capacity=1_000_000,
            learning_starts=max(10, 1000 // env.envs),
        ),
        Inline(),
        until=Until(minutes=10),
        device=wish.device,
        recipe="sac",
    )


def small(wish: RecipeArgs) -> Experiment:
    """Small nets and batches for CPUs, more envs and fewer updates."""
    return cpu_experiment("sac", wish, DEFAULT_ENV, small_learner)


def fitting(wish: RecipeArgs) -> Experiment:
    """The paper's numbers on a GPU, the small ones on a CPU."""
    return small(wish) if wish.device.startswith("cpu") else paper(wish)


# Returns fit the atoms where rewards are scaled; FastSAC's own tasks need no scaling.
SCALED: dict[str, Any] = {"normalize_rewards": True, "v_min": -10.0, "v_max": 10.0}
FASTSAC_DEFAULT_ENV = "CartpoleSwingup-v1"


def fast_paper(wish: RecipeArgs) -> Experiment:
    """FastSAC as published for humanoids; elsewhere with rewards scaled."""
    env, family = resolved(wish, FASTSAC_DEFAULT_ENV, 4096)
    return Experiment(
        env,
        SACConfig(**FASTSAC if family == "playground" else FASTSAC | SCALED),
        Sync(UpdateSchedule(8192, 8), replay_capacity=1024 * env.envs),
        Inline(),
        until=Until(env_steps=50_000 * env.envs),
        device=wish.device,
        recipe="fastsac",
    )


# FastSAC's choices in small nets, with larger steps. With its temperature (0.001 at first, 1e-3) the policy
# stays narrow: CartpoleSwingup is at 141 after 1,270 updates, where it is at 196 with these.
FAST_SMALL: dict[str, Any] = FASTSAC | {
    "gamma": 0.99,
    "n_step": 3,
    "tau": 0.1,
    "policy_delay": 2,
    "actor_hidden": (128, 64, 32),
    "critic_hidden": (256, 128, 64),
    "actor_lr": 1e-3,
    "critic_lr": 1e-3,
    "alpha_lr": 3e-3,
    "alpha_init": 0.01,
}
DMC: dict[str, Any] = {"v_min": -100.0, "v_max": 100.0}  # rewards in [0, 1]: at most 1 / (1 - 0.99)


def fast_learner(family: str) -> SACConfig:
    """What suits the family."""
    numbers = FAST_SMALL | (DMC if family == "dmc" else SCALED)
    return SACConfig(**numbers | (ROBOTS if family == "playground" else {}))


def fast_fitting(wish: RecipeArgs) -> Experiment:
    """The published numbers on a GPU, the small ones on a CPU."""
    if wish.device.startswith("cpu"):
        return cpu_experiment("fastsac", wish, FASTSAC_DEFAULT_ENV, fast_learner)
    return fast_paper(wish)


RECIPES = [
    Recipe("sac", "SAC: the paper's numbers on a GPU, small nets on a CPU", DEFAULT_ENV, fitting),
    Recipe(
        "fastsac", "FastSAC: categorical critics on targets of their own", FASTSAC_DEFAULT_ENV, fast_fitting
    ),
]
