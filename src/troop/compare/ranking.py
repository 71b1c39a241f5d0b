"""RecipeResult: the aggregated runs of one recipe; ranks recipes and states which one is fastest."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from troop.compare.plan import ComparisonPlan
from troop.compare.run_result import RunResult
from troop.compare.statistics import (
    Array,
    bootstrap_interval,
    first_crossing,
    forward_fill,
    iqm,
    median_time,
    probability_of_improvement,
)
from troop.logs.progress import duration, number

FRACTIONS = (0.5, 0.75, 0.9)


@dataclass(frozen=True)
class CurveBand:
    """Interquartile mean over runs and its bootstrap interval at each point of `x` (seconds or env steps)."""

    x: Array
    iqm: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class TimeToThreshold:
    """Seconds and env steps after which each done or failed run first reached a return; infinity if never."""

    threshold: float
    seconds: list[float]
    env_steps: list[float]

    @property
    def reached(self) -> int:
        """The number of runs that reached the threshold."""
        return sum(math.isfinite(time) for time in self.seconds)

    @property
    def median_seconds(self) -> float:
        """The median over runs."""
        return median_time(self.seconds)


@dataclass(frozen=True)
class RecipeResult:
    """One recipe; curves and final return use its done runs, times to thresholds also its failed ones."""

    recipe: str
    runs: list[RunResult]
    by_seconds: CurveBand | None
    by_env_steps: CurveBand | None
    thresholds: list[TimeToThreshold]  # ascending

    @property
    def external(self) -> bool:
        """Whether the curves are those of another program."""
        return any(run.external for run in self.runs)

    @property
    def label(self) -> str:
        """The name of the recipe as shown to users."""
        return f"{self.recipe} (external)" if self.external else self.recipe

    @property
    def done_runs(self) -> list[RunResult]:
        """The runs that used their budget."""
        return [run for run in self.runs if run.status == "done"]

    @property
    def final_return(self) -> tuple[float, float, float] | None:
        """Interquartile mean of the last evaluations with its lower and upper bound; None without runs."""
        band = self.by_seconds
        return None if band is None else (float(band.iqm[-1]), float(band.low[-1]), float(band.high[-1]))

    @property
    def env_steps_per_s(self) -> float | None:
        """Env steps per training second, median over runs; None without runs."""
        rates = [run.env_steps_per_s for run in self.done_runs]
        return float(np.median(rates)) if rates else None

    def sort_key(self) -> tuple[float, float, float]:
        """Order by thresholds reached, then time to the highest of them, then final return; best first."""
        times = [t.median_seconds for t in self.thresholds if math.isfinite(t.median_seconds)]
        final_return = self.final_return
        return -len(times), times[-1] if times else 0.0, -final_return[0] if final_return else math.inf


def rank_recipes(plan: ComparisonPlan, runs: list[RunResult]) -> list[RecipeResult]:
    """Aggregate the runs of each recipe, external ones included; best recipe first."""
    names = dict.fromkeys([*plan.recipes, *(run.recipe for run in runs)])
    by_recipe = {recipe: [run for run in runs if run.recipe == recipe] for recipe in names}
    done = {recipe: [run for run in group if run.status == "done"] for recipe, group in by_recipe.items()}
    bands = {recipe: curve_band([run.seconds for run in group], group) for recipe, group in done.items()}
    thresholds = sorted(plan.thresholds) or default_thresholds(
        list(bands.values()), [run for run in runs if run.status == "done"]
    )
    results = [
        RecipeResult(
            recipe,
            by_recipe[recipe],
            bands[recipe],
            curve_band([run.env_steps for run in done[recipe]], done[recipe]),
            [time_to_threshold(by_recipe[recipe], threshold) for threshold in thresholds],
        )
        for recipe in names
    ]
    return sorted(results, key=RecipeResult.sort_key)


def curve_band(x: list[Array], runs: list[RunResult]) -> CurveBand | None:
    """Aggregate learning curves; `x` has the seconds or env steps of each run's evaluations.

    The grid has every point at which a run was evaluated, from where all runs have a value; between two
    evaluations and after its last one a run keeps its last value.
    """
    if not runs:
        return None
    grid = np.unique(np.concatenate(x))
    grid = grid[grid >= max(points[0] for points in x)]
    values = np.stack([forward_fill(points, run.returns, grid) for points, run in zip(x, runs, strict=True)])
    return CurveBand(grid, iqm(values), *bootstrap_interval(values))


def time_to_threshold(runs: list[RunResult], threshold: float) -> TimeToThreshold:
    """Collect when the done and failed runs first reached the threshold; unfinished runs are left out."""
    ended = [run for run in runs if run.status in ("done", "failed")]
    return TimeToThreshold(
        threshold,
        [first_crossing(run.seconds, run.returns, threshold) for run in ended],
        [first_crossing(run.env_steps, run.returns, threshold) for run in ended],
    )


def observed_range(bands: list[CurveBand | None], done: list[RunResult]) -> tuple[float, float] | None:
    """Return 0 and the best interquartile mean of all recipes; None without runs.

    Where returns are negative, the median over runs of a run's worst evaluation replaces 0.
    """
    best = max((float(band.iqm.max()) for band in bands if band is not None), default=None)
    if best is None:
        return None
    return min(0.0, float(np.median([run.returns.min() for run in done]))), best


def default_thresholds(bands: list[CurveBand | None], done: list[RunResult]) -> list[float]:
    """Return 50, 75 and 90 % of the range that `observed_range` returns, rounded down to three digits."""
    if (bounds := observed_range(bands, done)) is None:
        return []
    start, best = bounds
    span = best - start
    if span <= 0:
        return [best]
    unit = 10.0 ** (math.floor(math.log10(span)) - 2)
    decimals = max(0, -math.floor(math.log10(unit)))
    rounded = [round(math.floor((start + share * span) / unit) * unit, decimals) for share in FRACTIONS]
    return sorted(set(rounded))


def format_seconds(seconds: float) -> str:
    """Format a training time; below 10 seconds with one decimal."""
    return f"{seconds:.1f}s" if seconds < 10 else duration(seconds)


def answer(results: list[RecipeResult]) -> str:
    """State in one or two sentences which recipe is fastest, by how much, and in how many pairs of runs."""
    first = results[0]
    reached = [t for t in first.thresholds if math.isfinite(t.median_seconds)]
    if not first.done_runs or not reached:
        any_done = any(result.done_runs for result in results)
        return "No recipe reached a threshold." if any_done else "No run is done yet."
    goal = reached[-1]
    time = format_seconds(goal.median_seconds)
    text = f"Fastest to {number(goal.threshold)}: {first.label}, {time} of training"
    text += f" (median of {len(goal.seconds)} seeds)" if len(goal.seconds) > 1 else " (one seed)"
    if len(results) == 1:
        return f"{text}."
    second, pairs = results[1], ""
    other = second.thresholds[len(reached) - 1]
    if (count := len(goal.seconds) * len(other.seconds)) > 1:
        wins = probability_of_improvement(goal.seconds, other.seconds) * count
        pairs = f" {first.label} was faster in {wins:g} of {count} pairs of runs."
    return f"{text}; {_runner_up(second.label, goal, other, _evaluation_interval(first))}{pairs}"


def _runner_up(recipe: str, goal: TimeToThreshold, other: TimeToThreshold, interval: float) -> str:
    if not other.seconds:
        return f"{recipe} has no result yet."
    if math.isfinite(other.median_seconds):
        close = other.median_seconds - goal.median_seconds < interval
        suffix = ", less than one evaluation later" if close else ""
        return f"next {recipe}, {format_seconds(other.median_seconds)}{suffix}."
    return f"{recipe} reached it in {other.reached} of {len(other.seconds)} runs."


def _evaluation_interval(result: RecipeResult) -> float:
    """Return the median of the training seconds between two evaluations."""
    gaps = np.concatenate([np.diff(run.seconds) for run in result.done_runs])
    return float(np.median(gaps)) if len(gaps) else 0.0
