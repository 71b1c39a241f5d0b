"""An Experiment per paper, each number cited; picked by name on the command line."""

from troop.core.config import nearest
from troop.core.errors import BadInput
from troop.recipes import apex, dqn, fast_td3, gorila, pql, sac
from troop.recipes.recipe import Recipe, Wish

_ALL = [*fast_td3.RECIPES, *sac.RECIPES, *dqn.RECIPES, *apex.RECIPES, *gorila.RECIPES, *pql.RECIPES]
RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _ALL}

__all__ = ["RECIPES", "Recipe", "Wish", "find"]


def find(name: str) -> Recipe:
    """The recipe of that name; BadInput with the nearest ones if there is none."""
    if name not in RECIPES:
        near = nearest(name, RECIPES)
        hint = f"did you mean {' or '.join(repr(n) for n in near)}?" if near else "see `troop recipes`."
        raise BadInput(f"Unknown recipe {name!r}; {hint}")
    return RECIPES[name]
