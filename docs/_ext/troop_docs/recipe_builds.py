"""Experiments of every recipe, built without a device check, and their settings by flag."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import cache
from typing import Any

from troop.core.config import flags
from troop.experiment import Experiment
from troop.recipes import RECIPES, RecipeArgs

PARTS = ("env", "algorithm", "system", "evaluation", "engine")
TOP_LEVEL = (
    "seed",
    "minutes",
    "env-steps",
    "target",
    "run",
    "deterministic",
    "env",
    "envs",
    "engine",
    "device",
)


@cache
def build(recipe: str, env: str | None = None, device: str = "cpu") -> Experiment:
    """Return the experiment a recipe makes of an env on a device; the device need not exist here."""
    return RECIPES[recipe].make(RecipeArgs(env, None, device))


def settings(experiment: Experiment) -> dict[str, Any]:
    """Return every setting of an experiment by its full flag, without dashes in front."""
    return {name: value for part in PARTS for name, value in flags(getattr(experiment, part), f"{part}.")}


def until(experiment: Experiment) -> dict[str, Any]:
    """Return the limits that end the run."""
    limits = dataclasses.asdict(experiment.until)
    return {name.replace("_", "-"): limit for name, limit in limits.items() if limit is not None}


@cache
def short_flags() -> dict[str, str]:
    """Return the shortest suffix of each flag that is unique in every recipe that has the flag."""
    names = [list(settings(build(recipe))) for recipe in RECIPES]
    shortest: dict[str, str] = {}
    for flag in {flag for known in names for flag in known}:
        words = flag.split(".")
        for start in reversed(range(len(words))):
            suffix = ".".join(words[start:])
            if all(_unique(suffix, known) for known in names if flag in known):
                shortest[flag] = suffix
                break
    return shortest


def _unique(suffix: str, known: list[str]) -> bool:
    matches = Counter(name == suffix or name.endswith(f".{suffix}") for name in [*known, *TOP_LEVEL])
    return matches[True] == 1
