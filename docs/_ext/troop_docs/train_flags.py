"""The flags of `troop train` that belong to no config class, read from its usage text."""

from __future__ import annotations

import re

from troop.cli.train import USAGE
from troop_docs.commands_page import split_default
from troop_docs.markdown import code

OTHERS = {
    "RECIPE": "name of a recipe; see [Recipes](recipes.md)",
    "--deterministic": "no overlap of simulation and learning, deterministic kernels",
}


def rows() -> list[list[str]]:
    """Return argument, default and meaning of each flag."""
    found = {
        match[1].strip(): match[2].strip()
        for match in re.finditer(r"^  (--[\w-]+(?: [A-Z]+)?) {2,}(\S.*)$", USAGE, re.M)
    }
    texts = {"RECIPE": OTHERS["RECIPE"]} | found | {k: v for k, v in OTHERS.items() if k not in found}
    rows = []
    for name, text in texts.items():
        meaning, default = split_default(text)
        rows.append([code(name), default, meaning])
    return rows
