"""FastTD3, TD3 and DDPG: the papers' settings, and small networks for CPUs, tuned by measurement."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from troop import envs
from troop.algorithms import TD3Config
from troop.core.batch import Transition
from troop.core.engine import Until
from troop.engines import Inline
from troop.experiment import Experiment
from troop.recipes.cpu import PRIORITY, cpu_experiment
from troop.recipes.env import resolve_env
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.replay.prioritized import PriorityConfig
from troop.roles.update_schedule import UpdateSchedule
from troop.systems import Sync

DEFAULT_ENV = "CartpoleSwingup-v1"


@dataclass(frozen=True)
class SuiteSettings:
    """The settings of the paper that differ between suites of envs."""

    envs: int
    rows_per_env: int
    algorithm: dict[str, Any]
    updates_per_step: int = 2


# Seo et al. 2025, table of hyperparameters; HumanoidBench is the base.
PAPER = {
    "playground": SuiteSettings(1024, 10_240, {"gamma": 0.97, "v_min": -10.0, "v_max": 10.0}),
    # The Playground column with the overrides of CheetahRun, the only DMC task of the authors' code.
    "dmc": SuiteSettings(
        1024,
        10_240,
        {"gamma": 0.97, "n_step": 3, "v_min": -500.0, "v_max": 500.0, "std_min": 0.1, "policy_noise": 0.1},
    ),
}
# The paper has no settings for other tasks: the base, with rewards scaled so that returns fit the atoms.
UNKNOWN = SuiteSettings(128, 51_200, {"normalize_rewards": True, "v_min": -10.0, "v_max": 10.0})
GO1 = {"std_min": 0.2, "std_max": 0.8, "policy_noise": 0.2}
TASKS: dict[str, tuple[dict[str, Any], int]] = {  # prefix -> algorithm, updates per step
    "Go1Joystick": (GO1, 8),
    "Go1Getup": (GO1, 8),
    "LeapCubeReorient": (
        {
            "n_step": 3,
            "gamma": 0.99,
            "v_min": -50.0,
            "v_max": 50.0,
            "policy_noise": 0.2,
            "clipped_double_q": False,
        },
        2,
    ),
    "LeapCubeRotateZ": ({"gamma": 0.99, "policy_noise": 0.2, "clipped_double_q": False}, 2),
}

# Small networks for CPUs; the measurements are in docs/explanation/results/generality.md. Small batches need
# LayerNorm and larger learning rates. Five settings keep tasks learnable whose rewards are rare at first:
# noise is held for up to a tenth of an episode, because independent noise hardly moves a system with inertia;
# a penalty keeps the actor out of the saturated range of tanh, where its gradient vanishes; rewards are
# scaled so that returns fit the atoms, whatever their scale; and the replay prefers rows with large errors.
# The evaluated policy is an average over about a hundred updates: single ones lose a goal now and then.
# The noise spans a factor of 40 on a logarithmic scale: a fallen HopperStand gets up only with strong noise,
# and a standing one keeps its balance only with little.
CPU: dict[str, Any] = {
    "critic_hidden": (256, 128, 64),
    "actor_hidden": (128, 64, 32),
    "n_step": 3,
    "policy_noise": 0.1,
    "std_min": 0.05,
    "std_max": 2.0,
    "std_distribution": "log_uniform",
    "noise_repeats": 0,
    "preactivation_penalty": 1.0,
    "average_tau": 0.01,
    "clip_actions": True,
    "layer_norm": True,
    "actor_lr": 1e-3,
    "critic_lr": 1e-3,
    # Room above the returns of the noisy policy for those of the deterministic one: with +-5 HalfCheetah
    # stalls at 1,600, with +-10 it does not.
    "normalize_rewards": True,
    "v_min": -10.0,
    "v_max": 10.0,
}
# The rewards of robots penalize shaking and falling. A policy that moves too fast or too noisily early in
# training learns to fall at once, which costs least. Hence the paper's learning rates and gamma, little noise
# that is not held, and larger batches.
CPU_ROBOTS: dict[str, Any] = CPU | {
    "gamma": 0.97,
    "n_step": 1,
    "std_min": 0.001,
    "std_max": 0.2,
    "std_distribution": "uniform",
    "noise_repeats": 1,
    "policy_noise": 0.001,
    "actor_lr": 3e-4,
    "critic_lr": 3e-4,
}


def paper_settings(env_id: str, family: str) -> SuiteSettings:
    """Return the paper's settings for the task: those of its suite, changed by those of the task."""
    suite = PAPER.get(family, UNKNOWN)
    for prefix, (algorithm, updates_per_step) in TASKS.items():
        if env_id.split("/")[-1].startswith(prefix):
            return dataclasses.replace(
                suite, algorithm=suite.algorithm | algorithm, updates_per_step=updates_per_step
            )
    return suite


def paper_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Return the paper's settings for the env's suite, on any device."""
    family = envs.family(args.env or DEFAULT_ENV)
    env, _ = resolve_env(args, DEFAULT_ENV, PAPER.get(family, UNKNOWN).envs)
    settings = paper_settings(env.id, family)
    return Experiment(
        env,
        TD3Config(**settings.algorithm),
        Sync(
            UpdateSchedule(32_768, settings.updates_per_step),
            replay_capacity=settings.rows_per_env * env.envs,
        ),
        Inline(),
        until=Until(env_steps=100_000 * env.envs),
        device=args.device,
        recipe="fasttd3-paper",
    )


def cpu_settings(family: str) -> dict[str, Any]:
    """Return the settings of small networks for a family of envs."""
    return CPU_ROBOTS if family == "playground" else CPU


def small_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Return small networks and batches for CPUs, on any device."""
    return cpu_experiment("fasttd3-cpu", args, DEFAULT_ENV, lambda family: TD3Config(**cpu_settings(family)))


def default_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Return the paper's settings on a GPU, small networks on a CPU."""
    experiment = small_experiment(args) if args.on_cpu else paper_experiment(args)
    return dataclasses.replace(experiment, recipe="fasttd3")


# Fujimoto et al. 2018, authors' code: layers of 256 and 256, Adam 3e-4, tau 0.005, noise 0.1, one update per
# env step after 25,000 uniformly random ones.
TD3_PAPER: dict[str, Any] = {
    "random_steps": 25_000,
    "atoms": 0,
    "tau": 0.005,
    "policy_noise": 0.2,
    "noise_clip": 0.5,
    "std_min": 0.1,
    "std_max": 0.1,
    "clip_actions": True,
    "policy_q": "first",
    "target_policy": True,
    "delay_targets": True,
    "normalize_observations": False,
    "actor_hidden": (256, 256),
    "critic_hidden": (256, 256),
    "weight_decay": 0.0,
}
# Lillicrap et al. 2016 with the networks and rates of TD3: one critic, no target noise, no delay. It has
# 10,000 random steps as in the TD3 paper (whose code has 25,000); Lillicrap et al. state none.
DDPG_PAPER = TD3_PAPER | {
    "random_steps": 10_000,
    "critics": 1,
    "clipped_double_q": False,
    "policy_noise": 0.0,
    "policy_delay": 1,
    "delay_targets": False,
}


# As published, both saturate on tasks whose rewards are rare at first; these settings are FastTD3's above.
GENERAL: dict[str, Any] = {
    "noise_repeats": 0,
    "preactivation_penalty": 1.0,
    "average_tau": 0.01,
    "normalize_rewards": True,
    "normalize_observations": True,
    "n_step": 3,
    "std_min": 0.05,
    "std_max": 0.8,
}


def classic_experiment(
    name: str, settings: dict[str, Any], priority: PriorityConfig, args: RecipeArgs
) -> Experiment[Transition]:
    """Return TD3 or DDPG: few envs, random actions at first, then one update per env step."""
    env, _ = resolve_env(args, "Pendulum-v1", 8)
    return Experiment(
        env,
        TD3Config(**settings),
        Sync(
            UpdateSchedule(256, env.envs),
            replay_capacity=1_000_000,
            learning_starts=math.ceil(settings["random_steps"] / env.envs),
            priority=priority,
        ),
        Inline(threads=1 if args.device == "cpu" else 0),
        until=Until(minutes=10),
        device=args.device,
        recipe=name,
    )


RECIPES = [
    Recipe(
        "fasttd3",
        "FastTD3: the paper's settings on a GPU, small networks on a CPU",
        DEFAULT_ENV,
        default_experiment,
    ),
    Recipe(
        "fasttd3-cpu",
        "FastTD3 with small networks and batches, on any device",
        DEFAULT_ENV,
        small_experiment,
    ),
    Recipe(
        "fasttd3-paper", "FastTD3 with the paper's settings, on any device", DEFAULT_ENV, paper_experiment
    ),
    Recipe(
        "td3",
        "TD3 (two scalar critics, delayed policy) with 3-step returns, held noise and priorities",
        "Pendulum-v1",
        partial(classic_experiment, "td3", TD3_PAPER | GENERAL, PRIORITY),
    ),
    Recipe(
        "td3-paper",
        "TD3 with the settings of the authors' code",
        "Pendulum-v1",
        partial(classic_experiment, "td3-paper", TD3_PAPER, PriorityConfig()),
    ),
    Recipe(
        "ddpg",
        "DDPG (one critic, no delay) with 3-step returns, held noise and priorities",
        "Pendulum-v1",
        partial(classic_experiment, "ddpg", DDPG_PAPER | GENERAL, PRIORITY),
    ),
    Recipe(
        "ddpg-paper",
        "DDPG as the baseline of the TD3 paper",
        "Pendulum-v1",
        partial(classic_experiment, "ddpg-paper", DDPG_PAPER, PriorityConfig()),
    ),
]
