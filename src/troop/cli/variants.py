"""What `troop compare` compares: recipes, and variants of them written as NAME='RECIPE --flag VALUE ...'."""

from __future__ import annotations

import re
import shlex

from troop.core.errors import BadInput

INSTEAD = {
    "--seed": "--seeds N, which runs seeds 1 to N",
    "--target": "--thresholds, since all runs use the same budget",
}
FILES = ("compare.json", "results.", "run.lock")
SHARED = ("--env", "--minutes", "--env-steps", "--run")

Names = tuple[str, ...]


def named(first: list[str], rest: list[str]) -> tuple[Names, dict[str, Names], Names]:
    """Names of recipes and variants, each once, also those after flags; what variants are; the flags."""
    from troop.recipes import RECIPES, find

    later = [word for word in rest if word in RECIPES or _variant(word)]
    words: dict[str, str] = {}
    for word in (*first, *later):
        name = word.partition("=")[0]
        if words.setdefault(name, word) != word:
            raise BadInput(f"{name} is named twice, as {words[name]!r} and as {word!r}.")
    own = {name: _own(name, word) for name, word in words.items() if "=" in word}
    for name in words:
        find(own.get(name, (name,))[0])
    return tuple(words), own, tuple(word for word in rest if word not in later)


def _variant(word: str) -> bool:
    """Whether it is NAME=RECIPE..., and not a flag or its value."""
    from troop.recipes import RECIPES

    name, equals, command = word.partition("=")
    return bool(equals) and not name.startswith("-") and command.split(" ")[0] in RECIPES


def _own(name: str, word: str) -> Names:
    """Recipe and flags of NAME='RECIPE --flag VALUE ...'."""
    from troop.recipes import RECIPES

    if not re.fullmatch(r"\w[\w.-]*", name) or name in RECIPES or name.startswith(FILES):
        raise BadInput(
            f"{word!r}: a variant is NAME='RECIPE --flag VALUE ...', where NAME consists of letters, digits, "
            "'-', '.' and '_' and is no recipe's and no file's of the comparison."
        )
    try:
        recipe, *flags = shlex.split(word.partition("=")[2]) or [""]
    except ValueError as error:
        raise BadInput(f"{word!r} cannot be read as a recipe and its flags: {error}.") from error
    for flag in flags:
        if (said := flag.split("=")[0].replace("_", "-")) in (*INSTEAD, *SHARED):
            raise BadInput(f"{name}: {said} is the same for all that are compared.")
    return recipe, *flags
