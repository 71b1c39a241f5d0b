"""Notes under the table of results: failures, early ends, restarts, background load, and the method."""

from __future__ import annotations

import shlex

from troop.compare.plan import ComparisonPlan
from troop.compare.ranking import RecipeResult
from troop.compare.run_result import RunResult
from troop.compare.statistics import CONFIDENCE

HIGH_LOAD = 0.15  # share of all cores used by other programs
FEW_RUNS = 5
MANY_RUNS = 12  # more are counted instead of named


def notes(plan: ComparisonPlan, results: list[RecipeResult]) -> list[str]:
    """Return one sentence per note: first about runs, then about the method."""
    runs = sorted((run for result in results for run in result.runs), key=lambda run: (run.seed, run.recipe))
    return [*run_notes(runs), *_method_notes(plan, results)]


def run_notes(runs: list[RunResult]) -> list[str]:
    """Return notes about runs: failures, runs left out, early ends, irregularities, load, other programs."""
    texts = [f"{run.name} failed: {run.reason}" for run in runs if run.status == "failed"]
    for status, label in (("unfinished", "Not finished"), ("waiting", "Not started")):
        if names := [run.name for run in runs if run.status == status]:
            listed = ", ".join(names) if len(names) <= MANY_RUNS else f"{len(names)} runs"
            texts.append(f"{label} and left out: {listed}.")
    for run in runs:
        if run.ended_early and run.summary is not None:
            used = f"{run.summary.wall_s:.0f} s and {run.summary.env_steps:,} env steps"
            texts.append(f"{run.name} ended early, after {used}.")
        texts += _irregularities(run)
    commands = {run.recipe: run.command for run in runs if run.external and run.command}
    texts += [f"{name} is external: `{command}`." for name, command in commands.items()]
    own = [run for run in runs if not run.external]
    if loaded := [run for run in own if run.background_load >= HIGH_LOAD]:
        some = ", ".join(run.name for run in loaded) if len(loaded) <= MANY_RUNS else f"{len(loaded)} runs"
        names_or_all = "every run" if len(loaded) == len(own) else some
        highest = max(run.background_load for run in loaded)
        texts.append(
            f"Other programs used up to {highest:.0%} of the cores at the start of {names_or_all}: "
            "times are too long."
        )
    return texts


def _irregularities(run: RunResult) -> list[str]:
    """Return a note with the numbers of resumes, restarts, env faults and skipped updates, if any."""
    summary = run.summary
    counts = {
        "resumed": run.resumed,
        "restarts of roles": summary.restarts if summary else 0,
        "env faults": summary.env_faults if summary else 0,
        "skipped updates": summary.skipped_updates if summary else 0,
    }
    parts = [f"{name} {count}" for name, count in counts.items() if count]
    return [f"{run.name}: {', '.join(parts)}."] if parts and run.status == "done" else []


def _method_notes(plan: ComparisonPlan, results: list[RecipeResult]) -> list[str]:
    texts = []
    counts = {len(result.done_runs) for result in results if result.done_runs}
    if counts and max(counts) == 1:
        texts.append("One run per recipe: there is no interval, and the difference may be chance.")
    elif counts and min(counts) < FEW_RUNS:
        texts.append(f"With {min(counts)} runs an interval is little more than their range.")
    if any(result.thresholds for result in results):
        texts.append(
            "A time is that of the first evaluation at or above the threshold; evaluation time is excluded."
        )
        if not plan.thresholds:
            texts.append("The thresholds are shares of the best return here; --thresholds fixes them.")
    texts += [f"{name} is `{shlex.join(words)}`." for name, words in plan.variants.items()]
    concurrent = [
        name for name, config in plan.recipes.items() if config.get("engine", {}).get("kind") != "Inline"
    ]
    if concurrent:
        texts.append(
            f"Evaluation runs concurrently with training and uses the same cores in: {', '.join(concurrent)}."
        )
    if counts and max(counts) > 1:
        texts.append(f"IQM: interquartile mean; intervals: {CONFIDENCE:.0%}, bootstrap over runs.")
    return texts
