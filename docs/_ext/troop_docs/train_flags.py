"""The flags of `troop train` that belong to no config class, read from its usage text."""

from __future__ import annotations

import re

from troop.cli.train import USAGE
from troop_docs.markdown import code

OTHERS = {
    "RECIPE": "The name of a recipe; see [Recipes](recipes.md).",
    "--seed N": "Seed of everything random (default 1).",
    "--device NAME": "`cpu` or `cuda:N` (default `cpu`).",
    "--deterministic": "No overlap of simulation and learning, deterministic kernels.",
}


def rows() -> list[list[str]]:
    """Return argument, default and meaning of each flag."""
    found = {
        match[1].strip(): match[2].strip()
        for match in re.finditer(r"^  (--[\w-]+(?: [A-Z]+)?) {2,}(\S.*)$", USAGE, re.M)
    }
    texts = {"RECIPE": OTHERS["RECIPE"]} | found | {k: v for k, v in OTHERS.items() if k not in found}
    return [[code(name), *_split(text)] for name, text in texts.items()]


def _split(text: str) -> tuple[str, str]:
    default = re.search(r" \(default ([^)]+)\)", text)
    if default is None:
        return "", text
    return code(default[1].strip("`")), text.replace(default[0], "")
