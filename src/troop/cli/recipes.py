"""troop recipes: what can be trained."""

from __future__ import annotations

from troop.cli.parse import Parser, say


def run(argv: list[str]) -> int:
    """List recipes with what they are for."""
    Parser("recipes", "List recipes: each fits its numbers to the env it is given.").parse(argv)
    from troop.recipes import RECIPES

    width = max(map(len, RECIPES))
    for recipe in RECIPES.values():
        say(f"{recipe.name:{width}} {recipe.about} (first try: --env {recipe.env})")
    return 0
