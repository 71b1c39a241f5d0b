"""An Experiment per paper, each number cited; picked by name on the command line."""

from troop.core.config import suggest
from troop.core.errors import BadInput
from troop.recipes import apex, ddpg_sync, dqn, fast_td3, gorila, pql, sac, simbav2
from troop.recipes.recipe import Recipe, RecipeArgs

_MODULES = (fast_td3, simbav2, sac, ddpg_sync, dqn, apex, gorila, pql)
RECIPES: dict[str, Recipe] = {recipe.name: recipe for module in _MODULES for recipe in module.RECIPES}

__all__ = ["RECIPES", "Recipe", "RecipeArgs", "find"]


def find(name: str) -> Recipe:
    """The recipe of that name; BadInput with the nearest ones if there is none."""
    if name not in RECIPES:
        near = suggest(name, RECIPES)
        hint = f"did you mean {' or '.join(repr(n) for n in near)}?" if near else "see `troop recipes`."
        raise BadInput(f"Unknown recipe {name!r}; {hint}")
    return RECIPES[name]
