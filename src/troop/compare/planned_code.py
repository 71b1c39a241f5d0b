"""What a comparison needs consent for: code outside Troop and Ray clusters, in any part of its plan."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from troop.compare.plan import ComparisonPlan
from troop.core.config_json import code_names
from troop.core.user_code import is_code_name
from troop.experiment import CONFIG_CLASSES

ADDRESS_FLAGS = ("--address", "--engine.address")
_BACKENDS = ("envpool:", "toy:")
_PREFIXES = ("gym:", "gymnasium:")  # of ids that may still name a module


def planned_code(plan: ComparisonPlan) -> list[tuple[str, str]]:
    """Return all code that a plan names: the place, and the name."""
    found = [("env", name) for name in named_code(["--env", plan.env])]
    found += [("flag", name) for name in named_code(plan.flags)]
    for variant, words in plan.variants.items():
        found += [(f"flag of {variant}", name) for name in named_code(words)]
    for recipe, experiment in plan.recipes.items():
        found += [(f"{recipe} {path}", name) for path, name in code_names(experiment, CONFIG_CLASSES)]
    return found


def named_code(words: Iterable[str]) -> list[str]:
    """Return the names of code in a command line: all values of the form `module:name`, of any flag.

    Which flags name code depends on the classes of the settings, some of them outside Troop.
    """
    found = []
    for word in words:
        if word.startswith("--"):
            word = word.partition("=")[2]
        if not word.startswith(_BACKENDS):
            for prefix in _PREFIXES:
                word = word.removeprefix(prefix)
            found += [word] if is_code_name(word) else []
    return found


def planned_clusters(plan: ComparisonPlan) -> list[str]:
    """Return the addresses of the Ray clusters that the runs of a plan join."""
    engines = [experiment.get("engine") for experiment in plan.recipes.values()]
    found = [engine["address"] for engine in engines if isinstance(engine, dict) and "address" in engine]
    for words in (plan.flags, *plan.variants.values()):
        found += named_clusters(words)
    return found


def named_clusters(words: Iterable[str]) -> list[str]:
    """Return the addresses of Ray clusters in a command line."""
    found = []
    for word, following in itertools.pairwise([*words, ""]):
        flag, equals, value = word.partition("=")
        if flag in ADDRESS_FLAGS:
            found.append(value if equals else following)
    return found
