"""Recipes, algorithms and networks outside Troop, named by the user."""

from __future__ import annotations

import dataclasses
from typing import Any

from troop.core.contracts import check_config, default_config
from troop.core.errors import BadInput
from troop.core.user_code import absolute_name, entry_points, is_code_name, load, name_of
from troop.recipes.recipe import Recipe


def load_recipe(name: str) -> Recipe:
    """Import the recipe `module:RECIPE` or the entry point of this name; BadInput if it is no Recipe."""
    found = load(entry_points("troop.recipes").get(name, name))
    if not isinstance(found, Recipe):
        raise BadInput(f"{name} is a {type(found).__name__}; it must be a troop.recipes.Recipe.")
    return found


def find_algorithm(algorithm: Any) -> Any:  # noqa: ANN401 - an AlgorithmConfig
    """Return a config, or the defaults of the class that `module:Config` or an entry point names.

    Raises BadInput if it lacks a method of AlgorithmConfig.
    """
    if isinstance(algorithm, str):
        name = entry_points("troop.algorithms").get(algorithm, algorithm)
        if not is_code_name(name):
            known = ", ".join(entry_points("troop.algorithms")) or "none"
            raise BadInput(
                f"--algorithm is {algorithm!r}; it must be package.module:Config or the name of an entry "
                f"point of troop.algorithms (installed: {known})."
            )
        algorithm = load(name)
    if isinstance(algorithm, type):
        algorithm = default_config(algorithm)
    check_config("algorithm", algorithm)
    return algorithm


def with_network(algorithm: Any, network: Any) -> Any:  # noqa: ANN401 - an AlgorithmConfig
    """Return the algorithm with networks that `network` builds; BadInput if it takes none."""
    name = absolute_name(network) if isinstance(network, str) else name_of(network)
    if not any(field.name == "net" for field in dataclasses.fields(algorithm)):
        raise BadInput(
            f"--network is {name}, but {type(algorithm).__name__} has no field net; use a recipe of DQN, "
            "C51, Rainbow, R2D2, TD3, SAC, PPO, IMPALA or APPO, or set the network in your own algorithm."
        )
    if not callable(load(name)):
        raise BadInput(f"--network is {name}, which is not a function (shape, outputs) -> torch.nn.Module.")
    return dataclasses.replace(algorithm, net=name)
