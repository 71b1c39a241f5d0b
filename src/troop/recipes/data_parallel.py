"""DD-PPO and FastTD3 on several workers: the papers' settings, and small networks for CPUs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from troop.algorithms import PPOConfig
from troop.core.batch import Trajectory, Transition
from troop.core.engine import Until
from troop.engines import Processes
from troop.engines.runtime import cores
from troop.experiment import Experiment
from troop.recipes import fast_td3
from troop.recipes.env import resolve_atari, resolve_env, with_threads
from troop.recipes.ppo import ATARI, ATARI_STEPS, SMALL, is_atari, with_divisible_minibatches
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.systems import DataParallel, OnPolicy, Sync

DEFAULT_ENV = "CartPole-v1"
# Wijmans et al. 2020 and the authors' code, PointGoal navigation: 4 envs and rollouts of 128 per worker, 2
# epochs of 2 minibatches, value clip, no advantage normalization, gradient norm 0.2, LSTM with two layers.
# Their rewards and images are of one simulator; other images use the same values.
PAPER: dict[str, Any] = {
    "rollout_length": 128,
    "epochs": 2,
    "minibatches": 2,
    "lr": 2.5e-4,
    "eps": 1e-5,
    "clip": 0.2,
    "value_clip": 0.2,
    "entropy_coef": 0.01,
    "max_grad_norm": 0.2,
    "normalize_advantages": "none",
    "normalize_observations": False,
    "normalize_rewards": False,
}
PAPER_CORE: dict[str, Any] = {"core": "lstm", "core_size": 512, "core_layers": 2}
SMALL_ENVS = 32  # per worker


def default_workers(args: RecipeArgs) -> int:
    """Return one worker per CUDA device, at least one, or one per core of a CPU, at least two."""
    return max(2, cores()) if args.on_cpu else max(1, torch.cuda.device_count())


def sharing_workers(most: int, *totals: int) -> int:
    """Return the largest number of workers up to `most` that divides all totals; `most` if only 1 does."""
    shared = math.gcd(*totals)
    fitting = max(count for count in range(1, most + 1) if shared % count == 0)
    return fitting if fitting > 1 else most


def dd_ppo(args: RecipeArgs) -> Experiment[Trajectory]:
    """Return PPO's settings, on one worker per core or CUDA device."""
    if is_atari(args):
        env, settings, until = resolve_atari(args, 4), ATARI, Until(env_steps=ATARI_STEPS)
        rollouts = OnPolicy(recreate_every=0)  # games are long: a resumed run starts new ones
    else:
        env, _ = resolve_env(args, DEFAULT_ENV, SMALL_ENVS)
        settings, until, rollouts = SMALL | {"minibatches": 8}, Until(minutes=10), OnPolicy()
    return Experiment(
        with_threads(env, 1),
        PPOConfig(**with_divisible_minibatches(settings, env.envs)),
        DataParallel(default_workers(args), rollouts=rollouts),
        Processes(),
        until=until,
        device=args.device,
        recipe="dd-ppo",
    )


def dd_ppo_paper(args: RecipeArgs) -> Experiment[Trajectory]:
    """Return the paper's settings for navigation, with an LSTM of two layers of 512 units."""
    env, _ = resolve_env(args, DEFAULT_ENV, 4)
    settings = with_divisible_minibatches(PAPER | PAPER_CORE, env.envs)
    return Experiment(
        with_threads(env, 1),
        PPOConfig(**settings),
        DataParallel(default_workers(args)),
        Processes(),
        until=Until(env_steps=2_500_000_000),
        device=args.device,
        recipe="dd-ppo-paper",
    )


def fasttd3_ddp(args: RecipeArgs) -> Experiment[Transition]:
    """Return FastTD3 with envs, batch and replay divided among the workers, whatever their number."""
    base = fast_td3.default_experiment(args)
    assert isinstance(base.system, Sync)
    schedule = dataclasses.replace(base.system.schedule, max_updates_per_step=0.0)
    return dataclasses.replace(
        base,
        env=with_threads(base.env, 1) if args.on_cpu else base.env,
        algorithm=dataclasses.replace(base.algorithm, compile=False),  # type: ignore[type-var]
        system=DataParallel(
            sharing_workers(default_workers(args), base.env.envs, schedule.batch_size),
            replays=dataclasses.replace(base.system, schedule=schedule),
            divide_among_workers=True,
        ),
        engine=Processes(),
        recipe="fasttd3-ddp",
    )


RECIPES = [
    Recipe(
        "dd-ppo",
        "DD-PPO (Wijmans et al. 2020): workers act, learn and average gradients; no central learner",
        DEFAULT_ENV,
        dd_ppo,
    ),
    Recipe("dd-ppo-paper", "DD-PPO with the paper's settings for navigation", DEFAULT_ENV, dd_ppo_paper),
    Recipe(
        "fasttd3-ddp",
        "FastTD3 on several workers or GPUs, which average their gradients",
        fast_td3.DEFAULT_ENV,
        fasttd3_ddp,
    ),
]
