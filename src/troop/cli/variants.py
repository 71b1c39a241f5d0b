"""Parse recipes on a command line: names, and variants written as NAME='RECIPE --flag VALUE ...'."""

from __future__ import annotations

import re
import shlex

from troop.core.errors import BadInput
from troop.core.user_code import is_code_name

RESERVED_PREFIXES = ("compare.json", "results.", "run.lock")
COMMON_FLAGS = ("--env", "--minutes", "--env-steps", "--run", "--seed", "--target")

Words = tuple[str, ...]


def parse_recipes(positional: list[str], rest: list[str]) -> tuple[Words, dict[str, Words], Words]:
    """Split the command line into names of recipes and variants, the variants' definitions, and flags.

    `positional` are the words before the first flag, `rest` those that the parser did not recognise: recipes
    may also follow a flag. Each name is returned once.
    """
    from troop.recipes import RECIPES, find

    after_flags = [word for word in rest if word in RECIPES or _is_variant(word)]
    words: dict[str, str] = {}
    for word in (*positional, *after_flags):
        name = word.partition("=")[0]
        if is_code_name(name):  # a recipe outside Troop: a variant without flags, under the recipe's own name
            name, word = find(name).name, f"{find(name).name}={name}"
        if words.setdefault(name, word) != word:
            raise BadInput(f"{name} is named twice, as {words[name]!r} and as {word!r}.")
    variants = {name: _parse_variant(name, word) for name, word in words.items() if "=" in word}
    for name in words:
        find(variants.get(name, (name,))[0])
    return tuple(words), variants, tuple(word for word in rest if word not in after_flags)


def _is_variant(word: str) -> bool:
    """Return whether `word` is NAME=RECIPE..., not a flag or the value of a flag."""
    from troop.recipes import RECIPES

    name, equals, command = word.partition("=")
    return bool(equals) and not name.startswith("-") and command.split(" ")[0] in RECIPES


def _parse_variant(name: str, word: str) -> Words:
    """Return recipe and flags of NAME='RECIPE --flag VALUE ...'."""
    from troop.recipes import RECIPES

    if not re.fullmatch(r"\w[\w.-]*", name) or name in RECIPES or name.startswith(RESERVED_PREFIXES):
        raise BadInput(
            f"{word!r}: a variant is NAME='RECIPE --flag VALUE ...', where NAME consists of letters, digits, "
            "'-', '.' and '_' and is not the name of a recipe or of a file of the comparison."
        )
    try:
        recipe, *flags = shlex.split(word.partition("=")[2]) or [""]
    except ValueError as error:
        raise BadInput(f"{word!r} cannot be parsed as a recipe and its flags: {error}.") from error
    for flag in flags:
        if (flag_name := flag.split("=")[0].replace("_", "-")) in COMMON_FLAGS:
            raise BadInput(f"{name}: {flag_name} applies to all recipes; give it outside the variant.")
    return recipe, *flags
