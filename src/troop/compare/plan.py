"""compare.json: what is compared, and what was tried so far."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from troop.core.errors import BadInput
from troop.runs import files, lock
from troop.runs.directory import CONFIG

NAME = "compare.json"
VERSION = 1


@dataclass(frozen=True)
class Attempt:
    """One child process: which run, when, how busy the machine was before it, how it ended."""

    recipe: str
    seed: int
    started: str
    busy: float  # share of all cores used by others just before it started
    outcome: str = "running"  # then done, stopped or failed
    reason: str = ""


@dataclass(frozen=True)
class Plan:
    """Recipes x seeds on one env with one budget; recipes are kept as whole experiments."""

    env: str
    minutes: float | None
    env_steps: int | None
    seeds: int
    flags: tuple[str, ...]
    thresholds: tuple[float, ...]  # empty: fractions of the best
    machine: dict[str, Any]
    recipes: dict[str, dict[str, Any]]
    own: dict[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # of variants: recipe and flags of their own
    history: tuple[Attempt, ...] = ()
    version: int = field(default=VERSION)

    @property
    def budget(self) -> str:
        """In words."""
        if self.minutes is not None:
            return f"{self.minutes:g} minute{'' if self.minutes == 1 else 's'} of training"
        return f"{self.env_steps:,} env steps"

    @property
    def title(self) -> str:
        """What is compared."""
        return f"{self.env}, {self.budget} each, {self.seeds} seed{'' if self.seeds == 1 else 's'}"

    def runs(self) -> Iterator[tuple[str, int]]:
        """Every (recipe, seed), all recipes of a seed before the next: whenever it ends, it compares."""
        return ((recipe, seed) for seed in range(1, self.seeds + 1) for recipe in self.recipes)

    def last_attempt(self, recipe: str, seed: int) -> Attempt | None:
        """The newest try of a run."""
        return next(reversed(self.attempts(recipe, seed)), None)

    def attempts(self, recipe: str, seed: int) -> list[Attempt]:
        """Every try of a run, oldest first."""
        return [attempt for attempt in self.history if (attempt.recipe, attempt.seed) == (recipe, seed)]

    def noted(self, attempt: Attempt) -> Self:
        """With one try more, or with the newest one of the same run and start replaced."""
        kept = tuple(
            old
            for old in self.history
            if (old.recipe, old.seed, old.started) != (attempt.recipe, attempt.seed, attempt.started)
        )
        return dataclasses.replace(self, history=(*kept, attempt))

    def write(self, folder: Path) -> None:
        """Replace compare.json in one step."""
        files.write_json(folder / NAME, dataclasses.asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What `write` wrote; BadInput if it is not that."""
        path = folder / NAME
        try:
            found = files.read_object(path)
        except OSError as error:
            raise BadInput(f"{path} cannot be read ({error.strerror}); choose another --run.") from error
        except ValueError as error:
            raise BadInput(f"{path} is damaged ({error}); choose another --run.") from error
        found.setdefault("own", {})
        known = {f.name for f in dataclasses.fields(cls)}
        if found.get("version") != VERSION or set(found) != known or not _sound(found):
            raise BadInput(f"{path} is damaged or of another version; choose another --run.")
        found["history"] = tuple(Attempt(**attempt) for attempt in found["history"])
        found["own"] = {name: tuple(words) for name, words in found["own"].items()}
        return cls(**found | {"flags": tuple(found["flags"]), "thresholds": tuple(found["thresholds"])})


def _sound(found: dict[str, Any]) -> bool:
    """Whether everything is of its kind, as far as anybody leans on it."""
    fields = {f.name for f in dataclasses.fields(Attempt)}
    return (
        isinstance(found["env"], str)
        and type(found["seeds"]) is int
        and found["seeds"] >= 1
        and (type(found["env_steps"]) is int or isinstance(found["minutes"], int | float))
        and isinstance(found["machine"], dict)
        and isinstance(found["recipes"], dict)
        and all(isinstance(made, dict) for made in found["recipes"].values())
        and all(re.fullmatch(r"[\w-][\w.-]*", name) for name in found["recipes"])  # they name folders
        and all(isinstance(found[name], list) for name in ("flags", "thresholds", "history"))
        and isinstance(found["own"], dict)
        and all(isinstance(words, list) for words in found["own"].values())
        and all(isinstance(word, str) for words in found["own"].values() for word in words)
        and all(isinstance(word, str) for word in found["flags"])
        and all(isinstance(x, int | float) and math.isfinite(x) for x in found["thresholds"])
        and all(isinstance(attempt, dict) and set(attempt) == fields for attempt in found["history"])
    )


def run_path(folder: Path, recipe: str, seed: int) -> Path:
    """Where a run of the comparison lives: an ordinary run directory."""
    return folder / recipe / f"seed{seed}"


def holds(folder: Path) -> bool:
    """Whether a comparison is there; BadInput if something else is."""
    if (folder / NAME).is_file():
        return True
    if not folder.exists():
        return False
    if not folder.is_dir():
        raise BadInput(f"{folder} is a file; choose another --run.")
    if (folder / CONFIG).exists():
        raise BadInput(f"{folder} holds a run, not a comparison; choose another --run.")
    if any(entry.name != lock.NAME for entry in folder.iterdir()):
        raise BadInput(f"{folder} is not empty and holds no comparison; choose another --run.")
    return False


def difference(old: dict[str, Any], new: dict[str, Any], path: str = "") -> tuple[str, Any, Any] | None:
    """The first setting, as a flag, in which two experiments differ, and both values."""
    for key in [*old, *(key for key in new if key not in old)]:
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict) and a.get("kind") == b.get("kind"):
            if found := difference(a, b, f"{path}{key}."):
                return found
        elif a != b:
            return _flag(f"{path}{key}"), _named(a), _named(b)
    return None


def _named(value: Any) -> Any:  # noqa: ANN401 - a JSON value
    return value.get("kind", value) if isinstance(value, dict) else value


def _flag(name: str) -> str:
    """How `troop train` calls a setting."""
    short = {"env.id": "env", "env.envs": "envs"}.get(name, name.removeprefix("until."))
    return f"--{short}".replace("_", "-")
