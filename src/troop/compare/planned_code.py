"""What a comparison needs consent for, in any part of its plan: code, Ray clusters, folders of replays."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from troop.compare.plan import ComparisonPlan
from troop.core.config_json import code_names, setting_values
from troop.core.user_code import is_code_name
from troop.experiment import CONFIG_CLASSES

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
    return _planned(plan, "address")


def planned_folders(plan: ComparisonPlan) -> list[str]:
    """Return the folders outside the run directories in which the runs of a plan keep their replays."""
    return _planned(plan, "replay_dir")


def named_clusters(words: Iterable[str]) -> list[str]:
    """Return the addresses of Ray clusters in a command line."""
    return flag_values(words, "address")


def named_folders(words: Iterable[str]) -> list[str]:
    """Return the folders of replays in a command line."""
    return flag_values(words, "replay_dir")


def flag_values(words: Iterable[str], setting: str) -> list[str]:
    """Return the values of all flags of a command line that end in this setting."""
    found = []
    for word, following in itertools.pairwise([*words, ""]):
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").rpartition(".")[2].replace("-", "_")
        if flag.startswith("--") and name == setting:
            found.append(value if equals else following)
    return found


def _planned(plan: ComparisonPlan, setting: str) -> list[str]:
    found = list(setting_values(plan.recipes, setting))
    for words in (plan.flags, *plan.variants.values()):
        found += flag_values(words, setting)
    return found
