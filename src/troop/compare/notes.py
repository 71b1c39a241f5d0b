"""What a reader of the table must know: failures, early ends, restarts, a busy machine, the reckoning."""

from __future__ import annotations

import shlex

from troop.compare.plan import Plan
from troop.compare.ranking import RecipeResult
from troop.compare.run_result import RunResult
from troop.compare.statistics import LEVEL

BUSY = 0.15  # of all cores, used by others


def notes(plan: Plan, found: list[RecipeResult]) -> list[str]:
    """One sentence each, what happened before how it was reckoned."""
    runs = sorted(
        (run for standing in found for run in standing.runs), key=lambda run: (run.seed, run.recipe)
    )
    return [*_happened(runs), *_reckoned(plan, found)]


def _happened(runs: list[RunResult]) -> list[str]:
    said = [f"{run.name} failed: {run.reason}" for run in runs if run.status == "failed"]
    for status, words in (("unfinished", "not finished"), ("waiting", "not started")):
        if names := [run.name for run in runs if run.status == status]:
            said.append(f"{words.capitalize()} and left out: {', '.join(names)}.")
    for run in runs:
        if run.early and run.summary is not None:
            spent = f"{run.summary.wall_s:.0f} s and {run.summary.env_steps:,} env steps"
            said.append(f"{run.name} ended early, after {spent}.")
        said += _trouble(run)
    if hurt := [run for run in runs if run.busy >= BUSY]:
        which = "every run" if len(hurt) == len(runs) else ", ".join(run.name for run in hurt)
        most = max(run.busy for run in hurt)
        said.append(
            f"Others used the machine (up to {most:.0%}) at the start of {which}: times are too long."
        )
    return said


def _trouble(run: RunResult) -> list[str]:
    """Restarts and the like of one run."""
    found = run.summary
    counts = {
        "resumed": run.resumed,
        "restarts of roles": found.restarts if found else 0,
        "env faults": found.env_faults if found else 0,
        "skipped updates": found.skipped_updates if found else 0,
    }
    told = [f"{what} {count}" for what, count in counts.items() if count]
    return [f"{run.name}: {', '.join(told)}."] if told and run.status == "done" else []


def _reckoned(plan: Plan, found: list[RecipeResult]) -> list[str]:
    said = []
    counts = {len(standing.done) for standing in found if standing.done}
    if counts and max(counts) == 1:
        said.append("One run of each: no interval, and luck is not told from merit.")
    elif counts and min(counts) < 5:
        said.append(f"With {min(counts)} runs an interval is hardly more than their range.")
    if any(standing.reached for standing in found):
        said.append("A time is that of the first evaluation at or above; evaluation itself is not counted.")
        if not plan.thresholds:
            said.append("The thresholds are shares of the best found here; --thresholds fixes them.")
    said += [f"{name} is `{shlex.join(words)}`." for name, words in plan.own.items()]
    beside = [name for name, made in plan.recipes.items() if made.get("engine", {}).get("kind") != "Inline"]
    if beside:
        said.append(
            f"Evaluation runs beside training and takes its share of the cores in: {', '.join(beside)}."
        )
    if counts and max(counts) > 1:
        said.append(f"IQM: interquartile mean; intervals: {LEVEL:.0%}, bootstrap over runs.")
    return said
