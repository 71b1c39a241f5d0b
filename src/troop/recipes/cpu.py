"""Sync on a few cores: learn on half of them while the simulator steps on the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from troop import envs
from troop.core.algorithm import AlgorithmConfig
from troop.core.batch import Transition
from troop.core.engine import Until
from troop.engines import Inline
from troop.engines.runtime import cores
from troop.experiment import Experiment
from troop.recipes.env import learner_threads, resolve_env, with_threads
from troop.recipes.recipe import RecipeArgs
from troop.roles.trainer import UpdateSchedule
from troop.systems import Sync


@dataclass(frozen=True)
class CpuProfile:
    """Settings that depend on the speed of a family of envs."""

    envs: int = 128
    updates_per_step: int = 1
    batch_size: int = 256
    learning_starts: int = 10  # rows per env before the first update


# While learning takes longer than simulating, more envs cost nothing and help: on HalfCheetah FastTD3 passes
# 3,800 with 128 envs x 1 update, where 128 x 2 and 32 x 4 stay at 1,500. Slow simulators need fewer envs.
CPU_PROFILES = {
    "playground": CpuProfile(64, 2, 1024, 100),
    "gymnasium": CpuProfile(16),
    "toy": CpuProfile(16),
}


def cpu_profile(args: RecipeArgs, default_env: str) -> CpuProfile:
    """Return the profile of the env's family."""
    return CPU_PROFILES.get(envs.family(args.env or default_env), CpuProfile())


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
        make_algorithm(family),
        Sync(
            UpdateSchedule(profile.batch_size, profile.updates_per_step, overlap=True),
            replay_capacity=1_000_000,
            learning_starts=profile.learning_starts,
        ),
        Inline(threads=threads),
        until=Until(minutes=10),
        device=args.device,
        recipe=recipe,
    )
