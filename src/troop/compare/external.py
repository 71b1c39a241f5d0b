"""Learning curves of programs other than Troop: DIR/NAME/seedN/curve.json beside the runs of a comparison.

    {"name": "sbx-sac", "command": "python train.py ...", "points": [[seconds, env_steps, return], ...]}

Seconds are training time without evaluation, return is the mean of an evaluation without exploration.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from troop.compare.plan import CURVE_FILE, ComparisonPlan
from troop.compare.run_result import RunResult, is_number
from troop.compare.statistics import Array
from troop.core.errors import BadInput
from troop.runs import files

_OVERRUN = 1.02  # an evaluation up to 2 % after the end of the budget counts


def read_external(plan: ComparisonPlan, folder: Path) -> list[RunResult]:
    """Read every external curve in `folder`; a damaged one becomes a failed run with a reason."""
    paths = [path for path in folder.glob(f"*/*/{CURVE_FILE}") if re.fullmatch(r"seed\d+", path.parent.name)]
    runs = [_read_run(plan, path) for path in paths]
    return sorted(runs, key=lambda run: (run.recipe, run.seed))


def check_external(plan: ComparisonPlan, folder: Path) -> None:
    """Raise BadInput if an external curve is damaged or has the name of a recipe of the plan."""
    for run in read_external(plan, folder):
        if run.status == "failed":
            raise BadInput(run.reason)
        if run.recipe in plan.recipes:
            raise BadInput(
                f"{folder / run.recipe} holds a curve of another program but {run.recipe} is a recipe here; "
                "give the curve another name."
            )


def _read_run(plan: ComparisonPlan, path: Path) -> RunResult:
    name, seed = path.parent.parent.name, int(path.parent.name.removeprefix("seed"))
    try:
        content = files.read_object(path)
        points = _check_points(content.get("points"))
        if content.get("name") != name:
            raise ValueError(f'"name" is {content.get("name")!r} and its directory is {name}')
        if not isinstance(command := content.get("command"), str):
            raise ValueError('"command" is not a text')
        points = points[points[:, 0 if plan.minutes is not None else 1] <= _OVERRUN * _limit(plan)]
        if not len(points):
            raise ValueError("it has no point within the budget")
    except (OSError, ValueError) as error:
        return RunResult(name, seed, "failed", f"{path} cannot be used: {error}.", external=True)
    seconds, env_steps, returns = points.T
    return RunResult(name, seed, "done", "", seconds, env_steps, returns, external=True, command=command)


def _limit(plan: ComparisonPlan) -> float:
    """Return the budget in seconds or env steps."""
    return 60 * plan.minutes if plan.minutes is not None else float(plan.env_steps or 0)


def _check_points(points: Any) -> Array:  # noqa: ANN401 - a JSON value
    """Return the points [point, 3]; ValueError unless finite with seconds and steps that never decrease."""
    if not isinstance(points, list) or not points:
        raise ValueError('"points" is not a list of [seconds, env_steps, return]')
    for point in points:
        if not isinstance(point, list) or len(point) != 3 or not all(is_number(value) for value in point):
            raise ValueError(f'{point!r} in "points" is not [seconds, env_steps, return]')
    table = np.array(points, dtype=np.float64)
    if (np.diff(table[:, :2], axis=0) < 0).any() or (table[:, :2] < 0).any():
        raise ValueError('seconds or env steps in "points" are negative or decrease')
    return table
