"""FastTD3 with the nets of SimbaV2: the numbers of its code, and small ones for CPUs found by measurement."""

from __future__ import annotations

import dataclasses
from typing import Any

from troop.algorithms import TD3Config
from troop.experiment import Experiment
from troop.recipes import fast_td3
from troop.recipes.cpu import cpu_experiment
from troop.recipes.recipe import Recipe, RecipeArgs

NAME, DEFAULT_ENV = "fasttd3-simbav2", fast_td3.DEFAULT_ENV

# FastTD3's code (fasttd3_simbav2): batches of 8,192, rates from 3e-4 to 3e-5 over 100,000 vector steps, no
# decay, two blocks of 512 and one of 256; its scales start at the square of SimbaV2's, its kernels are free.
PORT: dict[str, Any] = {
    "net": "simbav2_port",
    "critic_hidden": (512, 512),
    "actor_hidden": (256,),
    "lr_end": 0.1,
    "weight_decay": 0.0,
}
# Small blocks, as SimbaV2 itself has them; their features are normalized already.
CPU: dict[str, Any] = {
    "net": "simbav2",
    "critic_hidden": (64, 64),
    "actor_hidden": (64,),
    "layer_norm": False,
    "weight_decay": 0.0,
}


def learner(family: str) -> TD3Config:
    """The small FastTD3 with small blocks."""
    return TD3Config(**fast_td3.CPU_FAMILY.get(family, fast_td3.CPU_UNKNOWN) | CPU)


def fitting(wish: RecipeArgs) -> Experiment:
    """The published numbers on a GPU, the small ones on a CPU."""
    if wish.device.startswith("cpu"):
        return cpu_experiment(NAME, wish, DEFAULT_ENV, learner)
    made = fast_td3.paper(wish, PORT, batch=8192)
    algorithm = dataclasses.replace(
        made.algorithm, lr_updates=100_000 * made.system.schedule.updates_per_step
    )
    return dataclasses.replace(made, algorithm=algorithm, recipe=NAME)


RECIPES = [Recipe(NAME, "FastTD3 with SimbaV2's blocks on the unit sphere", DEFAULT_ENV, fitting)]
