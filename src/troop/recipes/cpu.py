"""Sync on a few cores: learn on half of them while the simulator steps on the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from troop import envs
from troop.core.engine import Until
from troop.core.env import EnvConfig
from troop.engines import Inline
from troop.engines.runtime import cores
from troop.experiment import Experiment
from troop.recipes.recipe import RecipeArgs
from troop.roles.trainer import UpdateSchedule
from troop.systems import Sync


@dataclass(frozen=True)
class CpuProfile:
    """Envs, updates a step, rows a batch, rows of each env before the first update."""

    envs: int = 128
    updates: int = 1
    batch: int = 256
    warmup: int = 10


# While learning takes longer than simulating, more envs are free and worth having: on HalfCheetah FastTD3
# passes 3,800 with 128 x 1, where 128 x 2 and 32 x 4 stay at 1,500. Slow simulators want fewer.
CPU_PROFILES = {
    "playground": CpuProfile(64, 2, 1024, 100),
    "gymnasium": CpuProfile(16),
    "toy": CpuProfile(16),
}


def resolved(wish: RecipeArgs, first: str, copies: int) -> tuple[EnvConfig, str]:
    """The env of a wish and its family; humanoids of the Playground have FastTD3's tuned reward."""
    id = wish.env or first
    env, family = envs.resolve(id, wish.envs or copies), envs.family(id)
    if family == "playground" and isinstance(env, envs.EnvPool):
        env = dataclasses.replace(env, settings=envs.tuned_reward(env.id))
    return env, family


def cpu_experiment(
    recipe: str,
    wish: RecipeArgs,
    first: str,
    learner: Callable[[str], Any],
    beats: dict[str, CpuProfile] = CPU_PROFILES,
) -> Experiment:
    """The experiment of the learner made for the env's family."""
    beat = beats.get(envs.family(wish.env or first), beats.get("", CpuProfile()))
    env, family = resolved(wish, first, beat.envs)
    learning = max(1, cores() // 2)
    if isinstance(env, envs.EnvPool):
        env = dataclasses.replace(env, threads=max(1, cores() - learning))
    return Experiment(
        env,
        learner(family),
        Sync(
            UpdateSchedule(beat.batch, beat.updates, overlap=True),
            replay_capacity=1_000_000,
            learning_starts=beat.warmup,
        ),
        Inline(threads=learning),
        until=Until(minutes=10),
        device=wish.device,
        recipe=recipe,
    )
