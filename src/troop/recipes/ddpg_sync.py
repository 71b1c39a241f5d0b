"""DDPG(n), the baseline of the PQL paper: the same learner, with acting and learning in turn."""

from __future__ import annotations

import dataclasses

from troop.algorithms import SACConfig, TD3Config
from troop.core.batch import Transition
from troop.core.engine import Until
from troop.engines import Inline
from troop.experiment import Experiment
from troop.recipes import pql
from troop.recipes.cpu import cpu_experiment
from troop.recipes.env import resolve_env
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.roles.update_schedule import UpdateSchedule
from troop.systems import Sync


def paper_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Li et al. 2023, table of hyperparameters: 8 updates of 8192 rows per step, after 32 steps."""
    env, _ = resolve_env(args, pql.DEFAULT_ENV, 4096)
    return Experiment(
        env,
        TD3Config(**pql.DDPG, policy_delay=1),
        Sync(UpdateSchedule(8192, 8), replay_capacity=5_000_000, learning_starts=32),
        Inline(),
        until=Until(minutes=60),
        device=args.device,
        recipe="ddpg-sync",
    )


def cpu_algorithm(family: str) -> TD3Config | SACConfig:
    """Return the small networks of PQL on a CPU, with one policy update per critic update."""
    return dataclasses.replace(pql.cpu_algorithm("pql", family), policy_delay=1)


def default_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Return the paper's settings on a GPU, small networks on a CPU."""
    if args.on_cpu:
        return cpu_experiment("ddpg-sync", args, pql.DEFAULT_ENV, cpu_algorithm)
    return paper_experiment(args)


RECIPES = [
    Recipe(
        "ddpg-sync",
        "DDPG(n), the baseline of the PQL paper: its learner, with acting and learning in turn",
        pql.DEFAULT_ENV,
        default_experiment,
    )
]
