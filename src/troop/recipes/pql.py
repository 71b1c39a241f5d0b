"""PQL, PQL-D and PQL with SAC: the paper's settings, and small networks for a few cores."""

from __future__ import annotations

from functools import partial
from typing import Any

from troop.algorithms import SACConfig, TD3Config
from troop.core.batch import Transition
from troop.core.engine import Until
from troop.engines import Processes
from troop.engines.runtime import cores
from troop.experiment import Experiment
from troop.recipes import fast_td3, sac
from troop.recipes.cpu import cpu_priority, cpu_profile, with_auto_compile
from troop.recipes.env import resolve_env, with_threads
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.systems import PQL

DEFAULT_ENV = "CartpoleSwingup-v1"

# Li et al. 2023, table of hyperparameters and authors' code (August 2023), for Isaac Gym.
NETWORKS: dict[str, Any] = {
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
    "normalize_rewards": True,  # the authors use constant scales: 0.01 for Ant, Humanoid and both hands
}
DDPG = NETWORKS | {
    "atoms": 0,
    "policy_noise": 0.8,
    "noise_clip": 0.2,  # clips the noise of four target actions in five
    "std_min": 0.05,
    "std_max": 0.8,
    "clip_actions": True,
}
DISTRIBUTIONAL = {"atoms": 51, "v_min": -10.0, "v_max": 10.0, "categorical_min": "elementwise_min"}
SAC = NETWORKS | {"alpha_lr": 5e-3, "log_std_min": -5.0, "log_std_max": 5.0}
PAPER: dict[str, TD3Config | SACConfig] = {
    "pql": TD3Config(**DDPG),
    "pql-d": TD3Config(**DDPG | DISTRIBUTIONAL),
    "pql-sac": SACConfig(**SAC),
}


def paper_experiment(name: str, args: RecipeArgs) -> Experiment[Transition]:
    """Return the paper's settings: 4096 envs, 8 critic updates per vector step, 2 per policy update."""
    env, _ = resolve_env(args, DEFAULT_ENV, 4096)
    return Experiment(
        env,
        PAPER[name],
        PQL(beta_av=8.0, beta_pv=2.0, batch_size=8192, replay_capacity=5_000_000, learning_starts=32),
        Processes(),
        until=Until(minutes=60),  # the paper trains the hands for 80 minutes, ANYmal for 30
        device=args.device,
        recipe=name,
    )


def cpu_algorithm(name: str, family: str) -> TD3Config | SACConfig:
    """Return the settings of FastTD3 or SAC for CPUs; `pql-d` with PQL-D's target.

    `pql` has categorical critics here too. Scalar ones do not find rare rewards: on BallInCupCatch they
    return 62, as random actions do, for 15,000 updates (docs/explanation/results/generality.md).
    """
    # The averaged actor was not measured with the actor learner's own update rate.
    changes: dict[str, Any] = {"average_tau": 0.0}
    if name == "pql-sac":
        return SACConfig(**sac.SMALL | sac.SMALL_NOISE | changes)
    if name == "pql-d":
        changes["categorical_min"] = "elementwise_min"
    return TD3Config(**fast_td3.cpu_settings(family) | changes)


def small_experiment(name: str, args: RecipeArgs) -> Experiment[Transition]:
    """Return small networks and batches for a few cores, with the ratios that fit the env's family."""
    profile = cpu_profile(args, DEFAULT_ENV)
    env, family = resolve_env(args, DEFAULT_ENV, profile.envs)
    return Experiment(
        with_threads(env, cores() - 2),
        with_auto_compile(cpu_algorithm(name, family)),
        PQL(
            beta_av=float(profile.updates_per_step),
            beta_pv=2.0,
            batch_size=profile.batch_size,
            replay_capacity=1_000_000,
            learning_starts=profile.learning_starts,
            priority=cpu_priority(family),
        ),
        Processes(),
        until=Until(minutes=10),
        device=args.device,
        recipe=name,
    )


def default_experiment(name: str, args: RecipeArgs) -> Experiment[Transition]:
    """Return the paper's settings on a GPU, small networks on a CPU."""
    return small_experiment(name, args) if args.on_cpu else paper_experiment(name, args)


def _recipe(name: str, description: str) -> Recipe:
    return Recipe(name, description, DEFAULT_ENV, partial(default_experiment, name))


RECIPES = [
    _recipe(
        "pql",
        "PQL: actor, critic learner and policy learner run concurrently; categorical critics on a CPU",
    ),
    _recipe("pql-d", "PQL-D: PQL with categorical critics and the element-wise minimum of their targets"),
    _recipe("pql-sac", "PQL with SAC's critic and policy updates"),
]
