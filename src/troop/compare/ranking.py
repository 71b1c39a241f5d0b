"""Standings: what the runs of each recipe come to, best first."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from troop.compare.plan import Plan
from troop.compare.run_result import RunResult
from troop.compare.statistics import (
    Array,
    first_at,
    held,
    interval,
    iqm,
    middle_time,
    probability_of_improvement,
)
from troop.logs.progress import duration, number

FRACTIONS = (0.5, 0.75, 0.9)


@dataclass(frozen=True)
class CurveBand:
    """An interquartile mean over runs and its interval, along time or env steps."""

    at: Array
    middle: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class TimeToThreshold:
    """When each run that counts first reached a threshold; infinity where it did not."""

    threshold: float
    seconds: list[float]
    env_steps: list[float]

    @property
    def count(self) -> int:
        """Runs that reached it."""
        return sum(math.isfinite(time) for time in self.seconds)

    @property
    def time(self) -> float:
        """The median over runs, in seconds."""
        return middle_time(self.seconds)


@dataclass(frozen=True)
class RecipeResult:
    """One recipe: curves and final return of runs that are done; a failed run reaches nothing more."""

    recipe: str
    runs: list[RunResult]
    by_time: CurveBand | None
    by_steps: CurveBand | None
    reached: list[TimeToThreshold]

    @property
    def done(self) -> list[RunResult]:
        """Runs that used their budget."""
        return [run for run in self.runs if run.status == "done"]

    @property
    def final(self) -> tuple[float, float, float] | None:
        """Interquartile mean of the last evaluations, and its interval."""
        if self.by_time is None:
            return None
        return float(self.by_time.middle[-1]), float(self.by_time.low[-1]), float(self.by_time.high[-1])

    @property
    def rate(self) -> float | None:
        """Env steps a training second, the median of runs."""
        rates = [run.summary.env_steps_per_s for run in self.done if run.summary is not None]
        return float(np.median(rates)) if rates else None

    def rank(self) -> tuple[float, float, float]:
        """Smaller is better: more thresholds, then sooner at the highest, then more return at the end."""
        times = [reach.time for reach in self.reached if math.isfinite(reach.time)]
        return -len(times), times[-1] if times else 0.0, -self.final[0] if self.final else math.inf


def standings(plan: Plan, runs: list[RunResult]) -> list[RecipeResult]:
    """All recipes of the plan, best first."""
    mine = {recipe: [run for run in runs if run.recipe == recipe] for recipe in plan.recipes}
    done = {recipe: [run for run in found if run.status == "done"] for recipe, found in mine.items()}
    by_time = {recipe: band([run.seconds for run in found], found) for recipe, found in done.items()}
    wanted = sorted(plan.thresholds) or fitting(
        list(by_time.values()), [run for run in runs if run.status == "done"]
    )
    found = [
        RecipeResult(
            recipe,
            mine[recipe],
            by_time[recipe],
            band([run.env_steps for run in done[recipe]], done[recipe]),
            [reach(mine[recipe], threshold) for threshold in wanted],
        )
        for recipe in plan.recipes
    ]
    return sorted(found, key=RecipeResult.rank)


def band(at: list[Array], runs: list[RunResult]) -> CurveBand | None:
    """Runs on one grid: every point at which one of them was evaluated, each run's last value held.

    It begins where all have a value, and ends with the last of them.
    """
    if not runs:
        return None
    grid = np.unique(np.concatenate(at))
    grid = grid[grid >= max(points[0] for points in at)]
    values = np.stack([held(points, run.returns, grid) for points, run in zip(at, runs, strict=True)])
    return CurveBand(grid, iqm(values), *interval(values))


def reach(runs: list[RunResult], threshold: float) -> TimeToThreshold:
    """When the runs that are done or failed reached it; unfinished ones say nothing yet."""
    judged = [run for run in runs if run.status in ("done", "failed")]
    return TimeToThreshold(
        threshold,
        [first_at(run.seconds, run.returns, threshold) for run in judged],
        [first_at(run.env_steps, run.returns, threshold) for run in judged],
    )


def fitting(bands: list[CurveBand | None], done: list[RunResult]) -> list[float]:
    """Half, three quarters and nine tenths of the way to the best interquartile mean of all.

    The way begins at 0, or, where returns are negative, at the worst evaluation of the middle run.
    """
    best = max((float(band.middle.max()) for band in bands if band is not None), default=None)
    if best is None:
        return []
    start = min(0.0, float(np.median([run.returns.min() for run in done])))
    way = best - start
    if way <= 0:
        return [best]
    unit = 10.0 ** (math.floor(math.log10(way)) - 2)  # three figures of the way, rounded down
    places = max(0, -math.floor(math.log10(unit)))
    rounded = [round(math.floor((start + share * way) / unit) * unit, places) for share in FRACTIONS]
    return sorted(set(rounded))


def spell(seconds: float) -> str:
    """A training time; short ones to a tenth of a second."""
    return f"{seconds:.1f}s" if seconds < 10 else duration(seconds)


def answer(found: list[RecipeResult]) -> str:
    """Which is fastest, in a sentence, and how sure that is."""
    first = found[0]
    reached = [reach for reach in first.reached if math.isfinite(reach.time)]
    if not first.done or not reached:
        return "No recipe reached a threshold." if any(s.done for s in found) else "No run is done yet."
    goal = reached[-1]
    said = f"Fastest to {number(goal.threshold)}: {first.recipe}, {spell(goal.time)} of training"
    said += f" (median of {len(goal.seconds)} seeds)" if len(goal.seconds) > 1 else " (one seed)"
    if len(found) == 1:
        return f"{said}."
    second, pairs = found[1], ""
    other = second.reached[len(reached) - 1]
    if (count := len(goal.seconds) * len(other.seconds)) > 1:
        wins = probability_of_improvement(goal.seconds, other.seconds) * count
        pairs = f" {first.recipe} was sooner in {wins:g} of {count} pairs of runs."
    return f"{said}; {_next(second.recipe, goal, other, _spacing(first))}{pairs}"


def _next(recipe: str, goal: TimeToThreshold, other: TimeToThreshold, spacing: float) -> str:
    """How the second did at what the first reached."""
    if not other.seconds:
        return f"{recipe} has no result yet."
    if math.isfinite(other.time):
        close = ", less than one evaluation later" if other.time - goal.time < spacing else ""
        return f"next {recipe}, {spell(other.time)}{close}."
    return f"{recipe} reached it in {other.count} of {len(other.seconds)} runs."


def _spacing(standing: RecipeResult) -> float:
    """Training seconds between two evaluations."""
    gaps = np.concatenate([np.diff(run.seconds) for run in standing.done])
    return float(np.median(gaps)) if len(gaps) else 0.0
