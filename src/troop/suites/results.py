"""TaskResult and SuiteResult: normalised returns of recipes, per task and over tasks."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from troop.compare.external import read_external
from troop.compare.plan import ComparisonPlan
from troop.compare.ranking import CurveBand, RecipeResult, TimeToThreshold, observed_range, rank_recipes
from troop.compare.run_result import RunResult, read_runs
from troop.compare.session import Comparison
from troop.compare.statistics import (
    Array,
    forward_fill,
    median_time,
    performance_profile,
    stratified_interval,
    task_weights,
    weighted_iqm,
)
from troop.suites.registry import find_task

FRACTIONS = (0.5, 0.9)
POINTS = 41  # of the curve over training time
LEVELS = np.linspace(0.0, 1.2, 121)  # of the performance profile
BEST_RETURN = "best return here"


@dataclass(frozen=True)
class TaskResult:
    """The recipes trained on one task, and the returns that score 0 and 1."""

    env: str
    random: float
    reference: float
    source: str  # citation of the reference
    plan: ComparisonPlan  # its thresholds are 50 and 90 % of the reference
    recipes: dict[str, RecipeResult]

    @property
    def published(self) -> bool:
        """Whether the reference is published; else it is the best return of this report."""
        return self.source != BEST_RETURN

    def normalise(self, returns: Array) -> Array:
        """Return scores: 0 for the return of random actions, 1 for the reference."""
        span = self.reference - self.random
        return (returns - self.random) / span if span > 0 else np.zeros_like(returns)

    def final_scores(self, recipe: str) -> Array:
        """Return the normalised last evaluation of each done run of a recipe; empty if it has none."""
        runs = self.recipes[recipe].done_runs if recipe in self.recipes else []
        return self.normalise(np.array([run.returns[-1] for run in runs], dtype=np.float64))

    def score(self, recipe: str) -> float | None:
        """Return the interquartile mean over runs of the normalised return; None without runs."""
        scores = self.final_scores(recipe)
        return float(weighted_iqm(scores[:, None], task_weights([len(scores)]))[0]) if len(scores) else None


@dataclass(frozen=True)
class SuiteResult:
    """One recipe over all tasks on which it has a done run; every task has the same weight."""

    recipe: str
    label: str
    tasks: list[TaskResult]
    iqm: float
    low: float
    high: float
    profile: CurveBand  # share of runs above each score of LEVELS
    curve: CurveBand  # interquartile mean of the normalised return over training seconds

    @property
    def runs(self) -> int:
        """The number of done runs."""
        return sum(len(task.final_scores(self.recipe)) for task in self.tasks)

    @property
    def has_interval(self) -> bool:
        """Whether some task has more than one run, without which there is nothing to resample."""
        return self.runs > len(self.tasks)

    def times(self, fraction: float) -> list[float]:
        """Return per task the median over runs of the seconds to a fraction of the reference."""
        return [time_to(task.recipes[self.recipe], fraction).median_seconds for task in self.tasks]

    def median_time(self, fraction: float) -> float:
        """Return the median over tasks; infinity if most tasks were not reached."""
        return median_time(self.times(fraction))

    def tasks_reached(self, fraction: float) -> int:
        """Return the number of tasks on which the median run reached the fraction."""
        return sum(math.isfinite(time) for time in self.times(fraction))


def time_to(result: RecipeResult, fraction: float) -> TimeToThreshold:
    """Return the times of a recipe on a task of the suite to a fraction of the reference."""
    return result.thresholds[FRACTIONS.index(fraction)]


def read_task(comparison: Comparison) -> TaskResult:
    """Read the runs of one task, rank its recipes and find its reference."""
    plan, folder = comparison.plan, comparison.folder
    runs = [*read_runs(plan, folder), *read_external(plan, folder)]
    random, reference, source = _reference(plan, runs)
    levels = tuple(random + fraction * (reference - random) for fraction in FRACTIONS)
    plan = dataclasses.replace(plan, thresholds=levels)
    recipes = {result.recipe: result for result in rank_recipes(plan, runs)}
    order = dict.fromkeys([*plan.recipes, *recipes])
    return TaskResult(
        plan.env, random, reference, source, plan, {recipe: recipes[recipe] for recipe in order}
    )


def _reference(plan: ComparisonPlan, runs: list[RunResult]) -> tuple[float, float, str]:
    """Return random return, reference return and source: published, or else the range of this report."""
    found = find_task(plan.env)
    if found and found[0].reference is not None:
        return found[0].random, found[0].reference, found[1]
    bands = [result.by_seconds for result in rank_recipes(plan, runs)]
    observed = observed_range(bands, [run for run in runs if run.status == "done"])
    worst, best = observed or (0.0, 0.0)
    return found[0].random if found else worst, best, BEST_RETURN


def aggregate(tasks: list[TaskResult]) -> list[SuiteResult]:
    """Return every recipe with a done run over its tasks; highest normalised return first."""
    names = dict.fromkeys(recipe for task in tasks for recipe in task.recipes)
    results = [_aggregate_one(recipe, tasks) for recipe in names]
    return sorted((result for result in results if result), key=lambda result: -result.iqm)


def _aggregate_one(recipe: str, all_tasks: list[TaskResult]) -> SuiteResult | None:
    tasks = [task for task in all_tasks if len(task.final_scores(recipe))]
    if not tasks:
        return None
    scores = [task.final_scores(recipe) for task in tasks]
    (iqm,), (low,), (high,) = _iqm_with_interval([values[:, None] for values in scores])
    return SuiteResult(
        recipe,
        tasks[0].recipes[recipe].label,
        tasks,
        float(iqm),
        float(low),
        float(high),
        CurveBand(LEVELS, *performance_profile(scores, LEVELS)),
        _curve(recipe, tasks),
    )


def _curve(recipe: str, tasks: list[TaskResult]) -> CurveBand:
    """Return the normalised return over training time, from where every run has an evaluation."""
    runs = {task.env: task.recipes[recipe].done_runs for task in tasks}
    every = [run for group in runs.values() for run in group]
    first, last = max(run.seconds[0] for run in every), max(run.seconds[-1] for run in every)
    grid = np.linspace(first, last, POINTS)
    values = [
        np.stack([task.normalise(forward_fill(run.seconds, run.returns, grid)) for run in runs[task.env]])
        for task in tasks
    ]
    return CurveBand(grid, *_iqm_with_interval(values))


def _iqm_with_interval(values: list[Array]) -> tuple[Array, Array, Array]:
    """Return interquartile mean, lower and upper bound, each [point], of one array [run, point] per task."""
    weights = task_weights([len(runs) for runs in values])
    return weighted_iqm(np.concatenate(values), weights), *stratified_interval(values)


def suite_runs(tasks: list[TaskResult]) -> list[RunResult]:
    """Return all runs, each named with its task."""
    return [
        dataclasses.replace(run, recipe=f"{task.env} {run.recipe}")
        for task in tasks
        for result in task.recipes.values()
        for run in result.runs
    ]
