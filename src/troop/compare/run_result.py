"""RunResult: the outcome of one run of a comparison, read from its run directory."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from troop.compare.plan import ComparisonPlan, run_path
from troop.compare.statistics import Array
from troop.core.errors import BadInput
from troop.runs.curve import RETURN, read_rows
from troop.runs.directory import CONFIG
from troop.runs.files import finite_number
from troop.runs.summary import Summary

RunStatus = Literal["waiting", "unfinished", "done", "failed"]
FULL_BUDGET = 0.99  # a run that is done with a smaller share of its budget ended early


@dataclass(frozen=True)
class RunResult:
    """One run: status, evaluations (three arrays of equal length), and irregularities."""

    recipe: str
    seed: int
    status: RunStatus
    reason: str = ""  # of a failure
    seconds: Array = field(default_factory=lambda: np.empty(0))  # training time of each evaluation
    env_steps: Array = field(default_factory=lambda: np.empty(0))
    returns: Array = field(default_factory=lambda: np.empty(0))
    summary: Summary | None = None
    resumed: int = 0  # number of resumes
    background_load: float = 0.0  # the highest before any attempt
    ended_early: bool = False
    external: bool = False  # read from a curve.json of another program
    command: str = ""  # of the other program

    @property
    def env_steps_per_s(self) -> float:
        """Env steps per training second."""
        if self.summary is not None:
            return self.summary.env_steps_per_s
        return float(self.env_steps[-1] / max(self.seconds[-1], 1e-9)) if len(self.seconds) else 0.0

    @property
    def name(self) -> str:
        """Recipe and seed, as shown to users."""
        return f"{self.recipe} seed {self.seed}"


def read_runs(plan: ComparisonPlan, folder: Path) -> list[RunResult]:
    """Read every run of the plan, in the plan's order, without external ones."""
    return [read_run(plan, folder, recipe, seed) for recipe, seed in plan.runs()]


def read_run(plan: ComparisonPlan, folder: Path, recipe: str, seed: int) -> RunResult:
    """Read the current state of one run of the plan."""
    path = run_path(folder, recipe, seed)
    attempts = plan.attempts(recipe, seed)
    last = attempts[-1] if attempts else None
    summary = _summary(path)
    done = summary is not None and summary.status == "done"
    if not done and last is not None and last.outcome == "failed":
        return RunResult(recipe, seed, "failed", last.reason, *_curve(path), summary)
    if summary is None and not (path / CONFIG).exists():
        return RunResult(recipe, seed, "waiting")
    seconds, env_steps, returns = _curve(path)
    status: RunStatus = "done" if done else "unfinished"
    if done and not len(returns):
        status = "failed"
    return RunResult(
        recipe,
        seed,
        status,
        "" if status != "failed" else "the run has no evaluation",
        seconds,
        env_steps,
        returns,
        summary,
        resumed=max(0, len(attempts) - 1),
        background_load=max((attempt.background_load for attempt in attempts), default=0.0),
        ended_early=done and summary is not None and _budget_share(plan, summary) < FULL_BUDGET,
    )


def _budget_share(plan: ComparisonPlan, summary: Summary) -> float:
    if plan.minutes is not None:
        return summary.wall_s / (60 * plan.minutes)
    return summary.env_steps / (plan.env_steps or 1)


def _summary(path: Path) -> Summary | None:
    try:
        return Summary.read(path)
    except BadInput:
        return None


def _curve(path: Path) -> tuple[Array, Array, Array]:
    """Return training seconds, env steps and mean return of each evaluation, ordered by env steps."""
    try:
        lines = read_rows(path)
    except BadInput:
        lines = []
    names = ("wall_s", "env_steps", RETURN)
    evaluations = [
        [float(line[name]) for name in names]
        for line in lines
        if all(is_number(line.get(name)) for name in names)
    ]
    table = np.array(sorted(evaluations, key=lambda row: row[1]), dtype=np.float64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def is_number(value: Any) -> bool:  # noqa: ANN401 - a JSON value
    """Return whether a JSON value is a finite number."""
    return finite_number(value) is not None
