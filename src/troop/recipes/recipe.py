"""Recipe: a named experiment that fits itself to an env."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from troop.experiment import Experiment


@dataclass(frozen=True)
class RecipeArgs:
    """What the user said that a recipe may depend on; None where nothing was said."""

    env: str | None = None
    envs: int | None = None
    device: str = "cpu"


@dataclass(frozen=True)
class Recipe:
    """A name, one line about it, the env it is tried on first, and how it is made."""

    name: str
    about: str
    env: str
    make: Callable[[RecipeArgs], Experiment]
