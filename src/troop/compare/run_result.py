"""What a run of the comparison left behind, read from its directory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from troop.compare.plan import Plan, run_path
from troop.compare.statistics import Array
from troop.core.errors import BadInput
from troop.runs.curve import RETURN, rows
from troop.runs.directory import CONFIG
from troop.runs.summary import Summary

Status = Literal["waiting", "unfinished", "done", "failed"]
EARLY = 0.99  # a run that is done with less than this share of its budget ended early


@dataclass(frozen=True)
class RunResult:
    """One run: how it stands, its evaluations, and what happened on the way."""

    recipe: str
    seed: int
    status: Status
    reason: str = ""
    seconds: Array = field(default_factory=lambda: np.empty(0))  # training time of each evaluation
    env_steps: Array = field(default_factory=lambda: np.empty(0))
    returns: Array = field(default_factory=lambda: np.empty(0))
    summary: Summary | None = None
    resumed: int = 0
    busy: float = 0.0
    early: bool = False

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.recipe} seed {self.seed}"


def gather(plan: Plan, folder: Path) -> list[RunResult]:
    """Every run of the plan."""
    return [read(plan, folder, recipe, seed) for recipe, seed in plan.runs()]


def read(plan: Plan, folder: Path, recipe: str, seed: int) -> RunResult:
    """One run of the plan as it stands on the disk."""
    path = run_path(folder, recipe, seed)
    tries = plan.attempts(recipe, seed)
    last = tries[-1] if tries else None
    summary = _summary(path)
    done = summary is not None and summary.status == "done"
    if not done and last is not None and last.outcome == "failed":
        return RunResult(recipe, seed, "failed", last.reason, *_curve(path), summary)
    if summary is None and not (path / CONFIG).exists():
        return RunResult(recipe, seed, "waiting")
    seconds, env_steps, returns = _curve(path)
    status: Status = "done" if done else "unfinished"
    if done and not len(returns):
        status = "failed"
    return RunResult(
        recipe,
        seed,
        status,
        "" if status != "failed" else "it left no evaluation",
        seconds,
        env_steps,
        returns,
        summary,
        resumed=max(0, len(tries) - 1),
        busy=max((attempt.busy for attempt in tries), default=0.0),
        early=done and summary is not None and _share(plan, summary) < EARLY,
    )


def _share(plan: Plan, summary: Summary) -> float:
    """Of the budget, how much was used."""
    if plan.minutes is not None:
        return summary.wall_s / (60 * plan.minutes)
    return summary.env_steps / (plan.env_steps or 1)


def _summary(path: Path) -> Summary | None:
    try:
        return Summary.read(path)
    except BadInput:
        return None


def _curve(path: Path) -> tuple[Array, Array, Array]:
    """Training seconds, env steps and mean return of each evaluation, in order."""
    try:
        found = rows(path)
    except BadInput:
        found = []
    names = ("wall_s", "env_steps", RETURN)
    kept = [
        [float(row[name]) for name in names] for row in found if all(_is_number(row.get(n)) for n in names)
    ]
    table = np.array(sorted(kept, key=lambda row: row[1]), dtype=np.float64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def _is_number(value: Any) -> bool:  # noqa: ANN401 - a JSON value
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
