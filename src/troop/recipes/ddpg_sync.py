"""DDPG(n), what the PQL paper holds PQL against: the same learner, in one place and in turn."""

from __future__ import annotations

import dataclasses

from troop.algorithms import FastTD3Config, SACConfig
from troop.core.engine import Until
from troop.engines import Inline
from troop.experiment import Experiment
from troop.recipes import pql
from troop.recipes.few_cores import few_cores, resolved
from troop.recipes.recipe import Recipe, Wish
from troop.roles.trainer import Rhythm
from troop.systems import Sync


def paper(wish: Wish) -> Experiment:
    """Li et al. 2023, table of hyperparameters: 8 updates of 8192 rows a step, 32 steps before the first."""
    env, _ = resolved(wish, pql.FIRST, 4096)
    return Experiment(
        env,
        FastTD3Config(**pql.DDPG, policy_delay=1),
        Sync(Rhythm(8192, 8), capacity=5_000_000, warmup=32),
        Inline(),
        until=Until(minutes=60),
        device=wish.device,
        recipe="ddpg-sync",
    )


def learner(family: str) -> FastTD3Config | SACConfig:
    """The small PQL's, in turn."""
    return dataclasses.replace(pql.learner("pql", family), policy_delay=1)


def fitting(wish: Wish) -> Experiment:
    """The paper's numbers on a GPU, small nets on a CPU."""
    if wish.device.startswith("cpu"):
        return few_cores("ddpg-sync", wish, pql.FIRST, learner)
    return paper(wish)


RECIPES = [Recipe("ddpg-sync", "DDPG(n) of the PQL paper: what PQL is, in one place", pql.FIRST, fitting)]
