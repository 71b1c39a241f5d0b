"""SAC and FastSAC: the papers' settings, and small networks for CPUs, tuned by measurement."""

from __future__ import annotations

import math
from typing import Any

from troop.algorithms import SACConfig
from troop.core.batch import Transition
from troop.core.engine import Until
from troop.engines import Inline
from troop.experiment import Experiment
from troop.recipes.cpu import cpu_experiment
from troop.recipes.env import resolve_env
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.roles.update_schedule import UpdateSchedule
from troop.systems import Sync

# Haarnoja et al. 2018 (1812.05905), table 1: two layers of 256 with ReLU, Adam 3e-4, tau 0.005, target
# entropy -dim(A), all SACConfig's defaults; one update of 256 rows per env step, a replay of a million rows,
# and in the authors' code 10,000 uniformly random env steps before the first update.
RANDOM_STEPS = 10_000
DEFAULT_ENV = "Pendulum-v1"

# holosoma (2512.01996), locomotion of G1 and T1: 4096 envs, 1024 rows each, 8 updates of 8192 rows per step.
FASTSAC: dict[str, Any] = {
    "gamma": 0.97,
    "tau": 0.125,
    "policy_delay": 4,
    "atoms": 101,
    "v_min": -20.0,
    "v_max": 20.0,
    "clipped_double_q": False,  # so the policy maximizes the mean of the critics
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

# Small networks for CPUs: the sizes, learning rates, held noise, scaled rewards and averaged actor of FastTD3
# for CPUs, and its categorical critics: on PendulumSwingup scalar critics return 0 after 20,000 updates,
# these 696 after 2,300.
SMALL: dict[str, Any] = {
    "atoms": 101,
    "v_min": -10.0,
    "v_max": 10.0,
    "n_step": 3,
    "noise_repeats": 0,
    "average_tau": 0.01,
    "actor_hidden": (128, 64, 32),
    "critic_hidden": (256, 128, 64),
    "layer_norm": True,
    "policy_delay": 2,
    "tau": 0.05,
    "actor_lr": 1e-3,
    "critic_lr": 1e-3,
    "alpha_lr": 3e-3,
    "normalize_observations": True,
    "normalize_rewards": True,
}
# The policy starts with little noise (FastSAC's values): targets that contain much noise prefer what noise
# cannot disturb, such as sliding on the back in HalfCheetah (docs/explanation/results/generality.md). Actions
# with more noise than the policy's own explore instead.
SMALL_NOISE: dict[str, Any] = {"alpha_init": 0.001, "log_std_max": 0.0, "noise_scale_max": 8.0}


# The rewards penalize shaking and falling: gamma, learning rates and n as in FastTD3; not measured here.
ROBOTS: dict[str, Any] = {"gamma": 0.97, "n_step": 1, "actor_lr": 3e-4, "critic_lr": 3e-4}


def cpu_algorithm(family: str) -> SACConfig:
    """Return the settings of small networks for a family of envs."""
    return SACConfig(**SMALL | SMALL_NOISE | (ROBOTS if family == "playground" else {}))


def paper_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Return the paper's settings: few envs, random actions at first, then one update per env step."""
    env, _ = resolve_env(args, DEFAULT_ENV, 8)
    return Experiment(
        env,
        SACConfig(random_steps=RANDOM_STEPS),
        Sync(
            UpdateSchedule(256, env.envs),
            replay_capacity=1_000_000,
            learning_starts=math.ceil(RANDOM_STEPS / env.envs),
        ),
        Inline(),
        until=Until(minutes=10),
        device=args.device,
        recipe="sac",
    )


def default_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Return the paper's settings on a GPU, small networks and more envs on a CPU."""
    if args.on_cpu:
        return cpu_experiment("sac", args, DEFAULT_ENV, cpu_algorithm)
    return paper_experiment(args)


# Rewards are scaled so that returns fit the atoms; FastSAC's own tasks need no scaling.
SCALED: dict[str, Any] = {"normalize_rewards": True, "v_min": -10.0, "v_max": 10.0}
FASTSAC_DEFAULT_ENV = "CartpoleSwingup-v1"


def fastsac_paper_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Return FastSAC as published for humanoids; with scaled rewards on other tasks."""
    env, family = resolve_env(args, FASTSAC_DEFAULT_ENV, 4096)
    return Experiment(
        env,
        SACConfig(**FASTSAC if family == "playground" else FASTSAC | SCALED),
        Sync(UpdateSchedule(8192, 8), replay_capacity=1024 * env.envs),
        Inline(),
        until=Until(env_steps=50_000 * env.envs),
        device=args.device,
        recipe="fastsac",
    )


# FastSAC with small networks and larger learning rates. With its own temperature (initially 0.001, learning
# rate 1e-3) the policy stays too deterministic: CartpoleSwingup returns 141 after 1,270 updates, and 196 with
# these settings.
FASTSAC_SMALL: dict[str, Any] = FASTSAC | {
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


def fastsac_cpu_algorithm(family: str) -> SACConfig:
    """Return the settings of small networks for a family of envs."""
    return SACConfig(**FASTSAC_SMALL | SCALED | (ROBOTS if family == "playground" else {}))


def fastsac_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Return the published settings on a GPU, small networks on a CPU."""
    if args.on_cpu:
        return cpu_experiment("fastsac", args, FASTSAC_DEFAULT_ENV, fastsac_cpu_algorithm)
    return fastsac_paper_experiment(args)


RECIPES = [
    Recipe(
        "sac", "SAC: the paper's settings on a GPU, small networks on a CPU", DEFAULT_ENV, default_experiment
    ),
    Recipe(
        "fastsac",
        "FastSAC: categorical critics without clipped double Q",
        FASTSAC_DEFAULT_ENV,
        fastsac_experiment,
    ),
]
