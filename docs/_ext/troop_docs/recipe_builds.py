"""Experiments of every recipe, built without a device check, and their settings by flag."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

from troop import engines, envs
from troop.cli.flags import SettingFlags
from troop.core.config import flags
from troop.experiment import Experiment
from troop.recipes import RECIPES, RecipeArgs

PARTS = ("env", "algorithm", "system", "evaluation", "engine")


@cache
def build(recipe: str, env: str | None = None, device: str = "cpu") -> Experiment[Any]:
    """Return the experiment a recipe makes of an env on a device; the device need not exist here."""
    return RECIPES[recipe].make(RecipeArgs(env, None, device))


def settings(experiment: Experiment[Any]) -> dict[str, Any]:
    """Return every setting of an experiment by its full flag, without dashes in front."""
    return {name: value for part in PARTS for name, value in flags(getattr(experiment, part), f"{part}.")}


def until(experiment: Experiment[Any]) -> dict[str, Any]:
    """Return the limits that end the run."""
    limits = dataclasses.asdict(experiment.until)
    return {name.replace("_", "-"): limit for name, limit in limits.items() if limit is not None}


@cache
def short_flags() -> dict[str, str]:
    """Return the shortest spelling of each flag that is unique in every recipe that has the flag."""
    shortest: dict[str, str] = {}
    for experiment in _variants():
        known = SettingFlags({part: getattr(experiment, part) for part in PARTS}, "troop train")
        for flag in known.values:
            here = known.shortest(flag)
            shortest[flag] = max(here, shortest.get(flag, here), key=len)
    return shortest


def _variants() -> list[Experiment[Any]]:
    """Every recipe with every env backend and engine: names are unique or not depending on them."""
    backends = (None, envs.Gymnasium("CartPole-v1"), envs.Toy())
    runners = (None, engines.Inline(), engines.Processes(), engines.Ray())
    return [
        dataclasses.replace(experiment, env=env or experiment.env, engine=engine or experiment.engine)
        for experiment in map(build, RECIPES)
        for env in backends
        for engine in runners
    ]
