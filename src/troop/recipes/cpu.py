"""Sync on a few cores: learn on half of them while the simulator steps on the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from troop import envs
from troop.core.algorithm import AlgorithmConfig
from troop.core.batch import Transition
from troop.core.engine import Until
from troop.engines import Inline
from troop.engines.runtime import cores
from troop.experiment import Experiment
from troop.recipes.env import learner_threads, resolve_env, with_threads
from troop.recipes.recipe import RecipeArgs
from troop.replay.prioritized import PriorityConfig
from troop.roles.update_schedule import UpdateSchedule
from troop.systems import Sync

A = TypeVar("A")  # the config of an algorithm


@dataclass(frozen=True)
class CpuProfile:
    """Settings that depend on the speed of a family of envs."""

    envs: int = 128
    updates_per_step: int = 1
    batch_size: int = 256
    learning_starts: int = 10  # rows per env before the first update


# Proportional priorities (Schaul et al. 2016). Where rewards are rare, their rows reach the critics sooner:
# PendulumSwingup returns 750 after 3,900 updates, with uniform sampling 0 after 6,200.
PRIORITY = PriorityConfig(alpha=0.6, beta=0.4)

# Updates that fill the time of a slow simulator cost nothing: WalkerRun returns 197 after 149,000 env steps
# with two updates per step and 44 with one.
MAX_UPDATES_PER_STEP = 8

# While learning takes longer than simulating, more envs do not slow the loop and raise the
# return. Slow simulators need fewer.
CPU_PROFILES = {
    "playground": CpuProfile(64, 2, 1024, 100),
    "gymnasium": CpuProfile(16),
    "toy": CpuProfile(16),
}


def cpu_profile(args: RecipeArgs, default_env: str) -> CpuProfile:
    """Return the profile of the env's family."""
    return CPU_PROFILES.get(envs.family(args.env or default_env), CpuProfile())


def cpu_priority(family: str) -> PriorityConfig:
    """Return the priorities of a family of envs; robots, whose rewards are dense, have none."""
    return PriorityConfig() if family == "playground" else PRIORITY


def with_auto_compile(algorithm: A) -> A:
    """Return the algorithm with `compile = "auto"`; unchanged if it cannot be compiled."""
    if not hasattr(algorithm, "compile"):
        return algorithm
    return dataclasses.replace(algorithm, compile="auto")  # type: ignore[type-var]


def cpu_experiment(
    recipe: str,
    args: RecipeArgs,
    default_env: str,
    make_algorithm: Callable[[str], AlgorithmConfig[Transition]],
) -> Experiment[Transition]:
    """Return the experiment with `make_algorithm(family)` as its algorithm."""
    profile = cpu_profile(args, default_env)
    env, family = resolve_env(args, default_env, profile.envs)
    threads = learner_threads()
    return Experiment(
        with_threads(env, cores() - threads),
        with_auto_compile(make_algorithm(family)),
        Sync(
            UpdateSchedule(profile.batch_size, profile.updates_per_step, True, MAX_UPDATES_PER_STEP),
            replay_capacity=1_000_000,
            learning_starts=profile.learning_starts,
            priority=cpu_priority(family),
        ),
        Inline(threads=threads),
        until=Until(minutes=10),
        device=args.device,
        recipe=recipe,
    )
