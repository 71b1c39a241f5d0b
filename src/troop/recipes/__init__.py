"""Recipes: experiments with the settings of the papers, each cited, selected by name."""

from troop.core.config import suggest
from troop.core.errors import BadInput
from troop.recipes import apex, ddpg_sync, dqn, fast_td3, gorila, pql, sac, simbav2
from troop.recipes.recipe import Recipe, RecipeArgs

_MODULES = (fast_td3, simbav2, sac, ddpg_sync, dqn, apex, gorila, pql)
RECIPES: dict[str, Recipe] = {recipe.name: recipe for module in _MODULES for recipe in module.RECIPES}

__all__ = ["RECIPES", "Recipe", "RecipeArgs", "find"]


def find(name: str) -> Recipe:
    """Return the recipe of this name; BadInput with similar names if there is none."""
    if name not in RECIPES:
        similar = suggest(name, RECIPES)
        hint = f"did you mean {' or '.join(map(repr, similar))}?" if similar else "see `troop recipes`."
        raise BadInput(f"Unknown recipe {name!r}; {hint}")
    return RECIPES[name]
