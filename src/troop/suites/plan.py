"""SuitePlan: the tasks of a suite directory, stored in suite.json; each task is a comparison in DIR/TASK."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from troop.compare.plan import CURVE_FILE, SUITE_FILE, ComparisonPlan, contains_plan, read_plan_file
from troop.compare.session import Comparison
from troop.runs import files
from troop.suites.registry import SUITES

VERSION = 1


@dataclass(frozen=True)
class SuitePlan:
    """Name of the suite (None for a list of envs), env ids, and recipes that cannot run a task."""

    suite: str | None
    tasks: tuple[str, ...]
    left_out: dict[str, dict[str, str]] = field(default_factory=dict)  # env -> recipe -> reason
    version: int = VERSION

    def write(self, folder: Path) -> None:
        """Replace suite.json atomically."""
        files.write_json(folder / SUITE_FILE, dataclasses.asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the plan that `write` stored; raise BadInput if the file is damaged or of another version."""
        content = read_plan_file(folder / SUITE_FILE, VERSION, _is_valid)
        return cls(content["suite"], tuple(content["tasks"]), content["left_out"])

    def comparisons(self, folder: Path) -> list[Comparison]:
        """Read the comparison of every task."""
        paths = [(env, task_path(folder, env)) for env in self.tasks]
        return [Comparison(ComparisonPlan.read(path), path, f"{env} ") for env, path in paths]


def _is_valid(content: dict[str, Any]) -> bool:
    """Return whether the fields have the types that the code relies on."""
    return (
        set(content) == {f.name for f in dataclasses.fields(SuitePlan)}
        and (content["suite"] is None or content["suite"] in SUITES)
        and isinstance(content["tasks"], list)
        and len(content["tasks"]) > 0
        and all(isinstance(env, str) and task_path(Path(), env).name for env in content["tasks"])
        and isinstance(content["left_out"], dict)
        and all(isinstance(reasons, dict) for reasons in content["left_out"].values())
    )


def task_path(folder: Path, env: str) -> Path:
    """Return the directory of a task: its env id, with other characters than letters, digits, -._ as _."""
    return folder / re.sub(r"[^A-Za-z0-9_.-]+", "_", env).lstrip(".")


def contains_suite(folder: Path) -> bool:
    """Return whether `folder` holds a suite; raise BadInput if it holds something else."""
    return contains_plan(folder, SUITE_FILE, f"*/seed*/{CURVE_FILE}")
