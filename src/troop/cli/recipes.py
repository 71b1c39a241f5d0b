"""troop recipes: list recipes."""

from __future__ import annotations

from troop.cli.parse import Parser, echo

DESCRIPTION = """\
List the recipes. A recipe combines an algorithm with a training system and sets all numbers for the env.
"""
EPILOG = """\
examples:
  troop train RECIPE --help       all settings of a recipe, as flags
"""


def run(argv: list[str]) -> int:
    """Print one line per recipe: name, description and a small env to try it on."""
    Parser("recipes", DESCRIPTION, EPILOG).parse(argv)
    from troop.core.user_code import entry_points
    from troop.recipes import RECIPES

    width = max(map(len, RECIPES))
    for recipe in RECIPES.values():
        echo(f"{recipe.name:{width}} {recipe.description} (try it with --env {recipe.default_env})")
    for name, value in entry_points("troop.recipes").items():
        echo(f"{name:{width}} {value}, of an installed package")
    return 0
