"""DDPG(n), what the PQL paper holds PQL against: the same learner, in one place and in turn."""

from __future__ import annotations

import dataclasses

from troop.algorithms import SACConfig, TD3Config
from troop.core.engine import Until
from troop.engines import Inline
from troop.experiment import Experiment
from troop.recipes import pql
from troop.recipes.cpu import cpu_experiment, resolved
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.roles.trainer import UpdateSchedule
from troop.systems import Sync


def paper(wish: RecipeArgs) -> Experiment:
    """Li et al. 2023, table of hyperparameters: 8 updates of 8192 rows a step, 32 steps before the first."""
    env, _ = resolved(wish, pql.DEFAULT_ENV, 4096)
    return Experiment(
        env,
        TD3Config(**pql.DDPG, policy_delay=1),
        Sync(UpdateSchedule(8192, 8), replay_capacity=5_000_000, learning_starts=32),
        Inline(),
        until=Until(minutes=60),
        device=wish.device,
        recipe="ddpg-sync",
    )


def learner(family: str) -> TD3Config | SACConfig:
    """The small PQL's, in turn."""
    return dataclasses.replace(pql.learner("pql", family), policy_delay=1)


def fitting(wish: RecipeArgs) -> Experiment:
    """The paper's numbers on a GPU, small nets on a CPU."""
    if wish.device.startswith("cpu"):
        return cpu_experiment("ddpg-sync", wish, pql.DEFAULT_ENV, learner)
    return paper(wish)


RECIPES = [
    Recipe("ddpg-sync", "DDPG(n) of the PQL paper: what PQL is, in one place", pql.DEFAULT_ENV, fitting)
]
