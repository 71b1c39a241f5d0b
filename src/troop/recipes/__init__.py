"""Recipes: experiments with the settings of the papers, each cited, selected by name."""

from troop.core.config import suggest
from troop.core.errors import BadInput
from troop.core.user_code import entry_points, is_code_name
from troop.recipes import (
    apex,
    appo,
    data_parallel,
    ddpg_sync,
    dqn,
    fast_td3,
    flash_sac,
    gorila,
    impala,
    memory,
    pixels,
    ppo,
    pql,
    r2d2,
    sac,
    seed,
    simbav2,
    unreal,
)
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.recipes.user_recipe import load_recipe

_MODULES = (
    fast_td3,
    simbav2,
    sac,
    pixels,
    memory,
    flash_sac,
    ddpg_sync,
    dqn,
    apex,
    gorila,
    pql,
    ppo,
    impala,
    appo,
    data_parallel,
    seed,
    r2d2,
    unreal,
)
RECIPES: dict[str, Recipe] = {recipe.name: recipe for module in _MODULES for recipe in module.RECIPES}

__all__ = ["RECIPES", "Recipe", "RecipeArgs", "find"]


def find(name: str) -> Recipe:
    """Return the recipe of this name: of Troop, `module:RECIPE`, or an entry point of an installed package.

    Raises BadInput with similar names if there is none.
    """
    if is_code_name(name) or (name not in RECIPES and name in entry_points("troop.recipes")):
        return load_recipe(name)
    if name not in RECIPES:
        similar = suggest(name, RECIPES)
        hint = f"did you mean {' or '.join(map(repr, similar))}?" if similar else "see `troop recipes`."
        raise BadInput(f"Unknown recipe {name!r}; {hint}")
    return RECIPES[name]
