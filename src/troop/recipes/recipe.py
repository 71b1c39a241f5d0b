"""Recipe: a named function that builds an experiment for an env and a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from troop.core.env import EnvConfig
from troop.core.errors import BadInput, TroopError
from troop.core.user_code import describe
from troop.experiment import Experiment


@dataclass(frozen=True)
class RecipeArgs:
    """The user's choices that a recipe depends on; None where the recipe decides."""

    env: str | EnvConfig | None = None
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

    def build(self, args: RecipeArgs) -> Experiment[Any]:
        """Return the result of `make`; BadInput if it raises or returns something else than an Experiment."""
        try:
            experiment = self.make(args)
        except TroopError:
            raise
        except (Exception, SystemExit) as error:
            raise BadInput(f"Recipe {self.name!r} fails: {describe(error)}") from error
        if not isinstance(experiment, Experiment):
            raise BadInput(f"Recipe {self.name!r} returns a {type(experiment).__name__}, not an Experiment.")
        return experiment if experiment.recipe else dataclasses.replace(experiment, recipe=self.name)
