"""FastTD3, TD3 and DDPG: the numbers of the papers, and small versions for CPUs found by measurement."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

from troop import envs
from troop.algorithms import TD3Config
from troop.core.engine import Until
from troop.engines import Inline
from troop.experiment import Experiment
from troop.recipes.cpu import cpu_experiment, resolved
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.roles.trainer import UpdateSchedule
from troop.systems import Sync

DEFAULT_ENV = "CartpoleSwingup-v1"


@dataclass(frozen=True)
class Numbers:
    """What differs between suites: copies of the env, rows per env, learner, rhythm."""

    envs: int
    per_env: int
    algorithm: dict[str, Any]
    updates: int = 2


# Seo et al. 2025, table of hyperparameters; HumanoidBench is the base.
PAPER = {
    "playground": Numbers(1024, 10_240, {"gamma": 0.97, "v_min": -10.0, "v_max": 10.0}),
    # CheetahRun in the reference; DMC rewards are at most 1 a step, and 1 / (1 - 0.99) = 100.
    "dmc": Numbers(
        128, 51_200, {"n_step": 3, "v_min": -500.0, "v_max": 500.0, "std_min": 0.1, "policy_noise": 0.1}
    ),
}
# The paper has no numbers for other tasks: the base, with rewards scaled so that returns fit the atoms.
UNKNOWN = Numbers(128, 51_200, {"normalize_rewards": True, "v_min": -10.0, "v_max": 10.0})
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

# Small nets for CPUs, found by measurement (docs/results/learning.md). LayerNorm and larger steps are
# what small batches need; the noise range is the one the published curves were made with.
CPU: dict[str, Any] = {
    "critic_hidden": (256, 128, 64),
    "actor_hidden": (128, 64, 32),
    "n_step": 3,
    "policy_noise": 0.1,
    "std_min": 0.05,
    "std_max": 0.8,
    "clip_actions": True,
    "layer_norm": True,
    "actor_lr": 1e-3,
    "critic_lr": 1e-3,
}
# Where the scale of rewards is not known, returns are scaled to fit the atoms, with room above the returns of
# the noisy policy for those of the clean one: with +-5 HalfCheetah stalls at 1,600, with +-10 it does not.
CPU_UNKNOWN = CPU | {"normalize_rewards": True, "v_min": -10.0, "v_max": 10.0}
CPU_FAMILY: dict[str, dict[str, Any]] = {
    "dmc": CPU | {"v_min": -100.0, "v_max": 100.0},  # rewards in [0, 1]: at most 1 / (1 - 0.99)
    # Their rewards punish shaking and falling, and a policy that moves too fast or too noisily early on finds
    # that falling at once costs least. The paper's learning rates and gamma, little noise, larger batches.
    "playground": CPU_UNKNOWN
    | {
        "gamma": 0.97,
        "n_step": 1,
        "std_min": 0.001,
        "std_max": 0.2,
        "policy_noise": 0.001,
        "actor_lr": 3e-4,
        "critic_lr": 3e-4,
    },
}


def paper(wish: RecipeArgs, differs: dict[str, Any] | None = None, batch: int = 32_768) -> Experiment:
    """The paper's numbers for the env's suite, whatever the device; `differs` are those of a variant."""
    numbers = PAPER.get(envs.family(wish.env or DEFAULT_ENV), UNKNOWN)
    env, _ = resolved(wish, DEFAULT_ENV, numbers.envs)
    algorithm, updates = numbers.algorithm | (differs or {}), numbers.updates
    for prefix, (task, count) in TASKS.items():
        if env.id.split("/")[-1].startswith(prefix):
            algorithm, updates = algorithm | task, count
    return Experiment(
        env,
        TD3Config(**algorithm),
        Sync(UpdateSchedule(batch, updates), replay_capacity=numbers.per_env * env.envs),
        Inline(),
        until=Until(env_steps=100_000 * env.envs),
        device=wish.device,
        recipe="fasttd3-paper",
    )


def small(wish: RecipeArgs) -> Experiment:
    """Small nets and batches for CPUs."""
    return cpu_experiment(
        "fasttd3-cpu", wish, DEFAULT_ENV, lambda family: TD3Config(**CPU_FAMILY.get(family, CPU_UNKNOWN))
    )


def fitting(wish: RecipeArgs) -> Experiment:
    """The paper's numbers on a GPU, the small ones on a CPU."""
    made = small(wish) if wish.device.startswith("cpu") else paper(wish)
    return dataclasses.replace(made, recipe="fasttd3")


# Fujimoto et al. 2018, authors' code: 256-256, Adam 3e-4, tau 0.005, noise 0.1, one update per env step.
TD3: dict[str, Any] = {
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
# Lillicrap et al. 2016 in today's dress: one critic, no smoothing, no delay.
DDPG = TD3 | {
    "critics": 1,
    "clipped_double_q": False,
    "policy_noise": 0.0,
    "policy_delay": 1,
    "delay_targets": False,
}


def one_each(name: str, settings: dict[str, Any], wish: RecipeArgs) -> Experiment:
    """TD3 and DDPG: few envs, as many updates as env steps, a thousand rows before the first."""
    env, _ = resolved(wish, "Pendulum-v1", 8)
    return Experiment(
        env,
        TD3Config(**settings),
        Sync(
            UpdateSchedule(256, env.envs),
            replay_capacity=1_000_000,
            learning_starts=max(10, 1000 // env.envs),
        ),
        Inline(threads=1 if wish.device == "cpu" else 0),
        until=Until(minutes=10),
        device=wish.device,
        recipe=name,
    )


RECIPES = [
    Recipe("fasttd3", "FastTD3: the paper's numbers on a GPU, small nets on a CPU", DEFAULT_ENV, fitting),
    Recipe("fasttd3-cpu", "FastTD3 with small nets and batches, whatever the device", DEFAULT_ENV, small),
    Recipe("fasttd3-paper", "FastTD3 with the paper's numbers, whatever the device", DEFAULT_ENV, paper),
    Recipe("td3", "TD3: scalar critics, target policy", "Pendulum-v1", partial(one_each, "td3", TD3)),
    Recipe("ddpg", "DDPG: one critic, no delay", "Pendulum-v1", partial(one_each, "ddpg", DDPG)),
]
