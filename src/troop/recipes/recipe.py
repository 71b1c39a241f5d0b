"""Recipe: a named function that builds an experiment for an env and a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from troop.experiment import Experiment


@dataclass(frozen=True)
class RecipeArgs:
    """The user's choices that a recipe depends on; None where the recipe decides."""

    env: str | None = None
    envs: int | None = None
    device: str = "cpu"

    @property
    def on_cpu(self) -> bool:
        """Whether the device is a CPU."""
        return self.device.startswith("cpu")


@dataclass(frozen=True)
class Recipe:
    """A name, a one-line description, the default env, and the function that builds the experiment."""

    name: str
    description: str
    default_env: str
    make: Callable[[RecipeArgs], Experiment[Any]]
