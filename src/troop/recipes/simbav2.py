"""FastTD3 with SimbaV2's networks: the settings of its code, and small ones for CPUs tuned by measurement."""

from __future__ import annotations

from typing import Any

from troop import envs
from troop.algorithms import TD3Config
from troop.core.batch import Transition
from troop.core.engine import Until
from troop.engines import Inline
from troop.experiment import Experiment
from troop.recipes import fast_td3
from troop.recipes.cpu import cpu_experiment
from troop.recipes.env import resolve_env
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.roles.update_schedule import UpdateSchedule
from troop.systems import Sync

NAME, DEFAULT_ENV = "fasttd3-simbav2", fast_td3.DEFAULT_ENV

# FastTD3's code (fasttd3_simbav2): batches of 8,192, learning rates from 3e-4 to 3e-5 over 100,000 vector
# steps, no weight decay, two blocks of 512 and one of 256. Its scales start at the square of SimbaV2's, and
# its weights are not projected to the unit sphere.
PORT: dict[str, Any] = {
    "net": "simbav2_port",
    "critic_hidden": (512, 512),
    "actor_hidden": (256,),
    "lr_end": 0.1,
    "weight_decay": 0.0,
}
# Small blocks as in SimbaV2 itself, which normalize their features without LayerNorm.
CPU: dict[str, Any] = {
    "net": "simbav2",
    "critic_hidden": (64, 64),
    "actor_hidden": (64,),
    "layer_norm": False,
    "weight_decay": 0.0,
}


def paper_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Return the settings of FastTD3's code for the env's suite."""
    family = envs.family(args.env or DEFAULT_ENV)
    env, _ = resolve_env(args, DEFAULT_ENV, fast_td3.PAPER.get(family, fast_td3.UNKNOWN).envs)
    settings = fast_td3.paper_settings(env.id, family)
    updates = settings.updates_per_step
    return Experiment(
        env,
        TD3Config(**settings.algorithm | PORT, lr_updates=100_000 * updates),
        Sync(UpdateSchedule(8192, updates), replay_capacity=settings.rows_per_env * env.envs),
        Inline(),
        until=Until(env_steps=100_000 * env.envs),
        device=args.device,
        recipe=NAME,
    )


def cpu_algorithm(family: str) -> TD3Config:
    """Return FastTD3's settings for CPUs with small SimbaV2 blocks."""
    return TD3Config(**fast_td3.cpu_settings(family) | CPU)


def default_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Return the published settings on a GPU, small networks on a CPU."""
    if args.on_cpu:
        return cpu_experiment(NAME, args, DEFAULT_ENV, cpu_algorithm)
    return paper_experiment(args)


RECIPES = [
    Recipe(NAME, "FastTD3 with the hyperspherical networks of SimbaV2", DEFAULT_ENV, default_experiment)
]
