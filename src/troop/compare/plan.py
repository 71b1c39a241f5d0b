"""ComparisonPlan: what is compared and the history of attempts, stored in compare.json."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from troop.core.config_json import invalid_field
from troop.core.errors import BadInput
from troop.runs import files, lock
from troop.runs.directory import CONFIG
from troop.runs.files import finite_number

PLAN_FILE = "compare.json"
SUITE_FILE = "suite.json"
CURVE_FILE = "curve.json"  # of an external run
KINDS = {CONFIG: "run", PLAN_FILE: "comparison", SUITE_FILE: "suite"}  # what a directory with this file holds
VERSION = 2
MAX_SEEDS = 10_000


@dataclass(frozen=True)
class Attempt:
    """One child process: its run, its start time, the load before it, and how it ended."""

    recipe: str
    seed: int
    started: str
    background_load: float  # share of all cores used by other programs just before the start
    outcome: str = "running"  # or done, stopped, failed
    reason: str = ""


@dataclass(frozen=True)
class ComparisonPlan:
    """Recipes x seeds on one env with one budget; each recipe is stored as a complete experiment."""

    env: str
    minutes: float | None
    env_steps: int | None
    seeds: int
    flags: tuple[str, ...]
    thresholds: tuple[float, ...]  # empty: fractions of the best return
    machine: dict[str, Any]
    recipes: dict[str, dict[str, Any]]
    variants: dict[str, tuple[str, ...]] = field(default_factory=dict)  # name -> base recipe, its own flags
    history: tuple[Attempt, ...] = ()
    version: int = field(default=VERSION)

    @property
    def budget(self) -> str:
        """The budget of each run as text."""
        if self.minutes is not None:
            return f"{self.minutes:g} minute{'' if self.minutes == 1 else 's'} of training"
        return f"{self.env_steps:,} env steps"

    @property
    def title(self) -> str:
        """Env, budget and number of seeds as text."""
        return f"{self.env}, {self.budget} each, {self.seeds} seed{'' if self.seeds == 1 else 's'}"

    def runs(self) -> Iterator[tuple[str, int]]:
        """Yield every (recipe, seed), seed by seed, so that a comparison stopped early has all recipes."""
        return ((recipe, seed) for seed in range(1, self.seeds + 1) for recipe in self.recipes)

    def attempts(self, recipe: str, seed: int) -> list[Attempt]:
        """Return all attempts of a run, oldest first."""
        return [attempt for attempt in self.history if (attempt.recipe, attempt.seed) == (recipe, seed)]

    def with_attempt(self, attempt: Attempt) -> Self:
        """Return a plan with this attempt added, or replaced if run and start time are already present."""
        others = tuple(
            old
            for old in self.history
            if (old.recipe, old.seed, old.started) != (attempt.recipe, attempt.seed, attempt.started)
        )
        return dataclasses.replace(self, history=(*others, attempt))

    def write(self, folder: Path) -> None:
        """Replace compare.json atomically."""
        files.write_json(folder / PLAN_FILE, dataclasses.asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the plan that `write` stored; raise BadInput if the file is damaged or of another version."""
        fields = {f.name for f in dataclasses.fields(cls)}
        content = read_plan_file(folder / PLAN_FILE, VERSION, lambda c: set(c) == fields and _is_valid(c))
        content["history"] = tuple(Attempt(**attempt) for attempt in content["history"])
        content["variants"] = {name: tuple(words) for name, words in content["variants"].items()}
        content["flags"], content["thresholds"] = tuple(content["flags"]), tuple(content["thresholds"])
        return cls(**content)


def _is_valid(content: dict[str, Any]) -> bool:
    """Return whether the fields have the types and ranges that the code relies on."""
    attempt_fields = {f.name for f in dataclasses.fields(Attempt)}
    return (
        isinstance(content["env"], str)
        and type(content["seeds"]) is int
        and 1 <= content["seeds"] <= MAX_SEEDS
        and (
            (content["minutes"] is None and type(content["env_steps"]) is int and content["env_steps"] >= 1)
            or (content["env_steps"] is None and (finite_number(content["minutes"]) or 0) > 0)
        )
        and isinstance(content["machine"], dict)
        and isinstance(content["recipes"], dict)
        and len(content["recipes"]) > 0
        and all(isinstance(experiment, dict) for experiment in content["recipes"].values())
        and all(re.fullmatch(r"[\w-][\w.-]*", name) for name in content["recipes"])  # names of folders
        and all(isinstance(content[name], list) for name in ("flags", "thresholds", "history"))
        and isinstance(content["variants"], dict)
        and all(isinstance(words, list) for words in content["variants"].values())
        and all(isinstance(word, str) for words in content["variants"].values() for word in words)
        and all(isinstance(word, str) for word in content["flags"])
        and all(finite_number(x) is not None for x in content["thresholds"])
        and all(
            isinstance(attempt, dict)
            and set(attempt) == attempt_fields
            and invalid_field(Attempt, attempt) is None
            for attempt in content["history"]
        )
    )


def run_path(folder: Path, recipe: str, seed: int) -> Path:
    """Return the run directory of one run of the comparison."""
    return folder / recipe / f"seed{seed}"


def read_plan_file(path: Path, version: int, is_valid: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the JSON object in `path`; raise BadInput if it is missing, damaged or of another version."""
    try:
        content = files.read_object(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); choose another --run.") from error
    except ValueError as error:
        raise BadInput(f"{path} is damaged ({error}); choose another --run.") from error
    if content.get("version") != version or not is_valid(content):
        raise BadInput(f"{path} is damaged or of another version; choose another --run.")
    return content


def contains_comparison(folder: Path) -> bool:
    """Return whether `folder` holds a comparison; raise BadInput if it holds something else."""
    return contains_plan(folder, PLAN_FILE, f"seed*/{CURVE_FILE}")


def contains_plan(folder: Path, file: str, curves: str) -> bool:
    """Return whether `folder` holds the plan `file`; raise BadInput if it holds something else.

    Entries with external curves, found by the pattern `curves`, may be there before the plan.
    """
    if (folder / file).is_file():
        return True
    if not folder.exists():
        return False
    if not folder.is_dir():
        raise BadInput(f"{folder} is a file; choose another --run.")
    for name, kind in KINDS.items():
        if (folder / name).exists():
            raise BadInput(f"{folder} holds a {kind}, not a {KINDS[file]}; choose another --run.")
    entries = [entry for entry in folder.iterdir() if entry.name != lock.NAME]
    if not all(any(entry.glob(curves)) for entry in entries):
        raise BadInput(f"{folder} is not empty and holds no {KINDS[file]}; choose another --run.")
    return False


def first_difference(old: dict[str, Any], new: dict[str, Any], path: str = "") -> tuple[str, Any, Any] | None:
    """Return the flag of the first setting in which two experiments differ, with both values, or None."""
    for key in [*old, *(key for key in new if key not in old)]:
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict) and a.get("kind") == b.get("kind"):
            if difference := first_difference(a, b, f"{path}{key}."):
                return difference
        elif a != b:
            return _flag(f"{path}{key}"), _kind_or_value(a), _kind_or_value(b)
    return None


def _kind_or_value(value: Any) -> Any:  # noqa: ANN401 - a JSON value
    return value.get("kind", value) if isinstance(value, dict) else value


def _flag(name: str) -> str:
    """Return the flag of `troop train` that sets the config field `name`."""
    short = {"env.id": "env", "env.envs": "envs"}.get(name, name.removeprefix("until."))
    return f"--{short}".replace("_", "-")
