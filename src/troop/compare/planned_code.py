"""The code outside Troop that a comparison needs: in its experiments, its env, its flags and its variants."""

from __future__ import annotations

from collections.abc import Iterable

from troop.compare.plan import ComparisonPlan
from troop.core.config_json import code_names
from troop.core.user_code import is_code_name
from troop.experiment import CONFIG_CLASSES

CODE_FLAGS = ("--env", "--algorithm", "--network", "--net", "--algorithm.net")
_BACKENDS = ("envpool:", "toy:")
_PREFIXES = ("gym:", "gymnasium:")  # of ids that may still name a module


def planned_code(plan: ComparisonPlan) -> dict[str, str]:
    """Return the names of code in a plan, by the place that has each of them."""
    found = {f"env {name}": name for name in named_code(["--env", plan.env])}
    found |= {f"flag {name}": name for name in named_code(plan.flags)}
    for variant, words in plan.variants.items():
        found |= {f"variant {variant} {name}": name for name in named_code(words)}
    for recipe, experiment in plan.recipes.items():
        found |= {f"{recipe} {path}": name for path, name in code_names(experiment, CONFIG_CLASSES).items()}
    return found


def named_code(words: Iterable[str]) -> list[str]:
    """Return the names of code in a command line: its first word, and the values of `CODE_FLAGS`."""
    found, flag = [], "--algorithm"
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            flag, word = name.replace("_", "-"), value if equals else ""
        if flag in CODE_FLAGS and not word.startswith(_BACKENDS):
            for prefix in _PREFIXES:
                word = word.removeprefix(prefix)
            found += [word] if is_code_name(word) else []
    return found
