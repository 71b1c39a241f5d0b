"""Notes under the tables of a suite: runs, recipes left out, references and the method."""

from __future__ import annotations

import shlex

from troop.compare.notes import run_notes
from troop.compare.statistics import CONFIDENCE
from troop.suites.plan import SuitePlan
from troop.suites.results import SuiteResult, TaskResult, suite_runs


def notes(suite: SuitePlan, tasks: list[TaskResult], results: list[SuiteResult]) -> list[str]:
    """Return one sentence per note: first about runs and recipes, then about the method."""
    texts = [*run_notes(suite_runs(tasks)), *left_out_notes(suite)]
    variants = {name: words for task in tasks for name, words in task.plan.variants.items()}
    texts += [f"{name} is `{shlex.join(words)}`." for name, words in variants.items()]
    return [*texts, *_method_notes(tasks, results)]


def left_out_notes(suite: SuitePlan) -> list[str]:
    """Return one note per recipe with the tasks that it cannot run, and the reason for the first of them."""
    by_recipe: dict[str, dict[str, str]] = {}
    for env, reasons in suite.left_out.items():
        for recipe, reason in reasons.items():
            by_recipe.setdefault(recipe, {})[env] = reason
    return [
        f"Left out for {recipe}: {', '.join(reasons)}. {next(iter(reasons.values()))}"
        for recipe, reasons in by_recipe.items()
    ]


def _method_notes(tasks: list[TaskResult], results: list[SuiteResult]) -> list[str]:
    texts = []
    if unpublished := [task.env for task in tasks if not task.published]:
        texts.append(
            f"No published reference for {', '.join(unpublished)}: the best return of this report scores 1."
        )
    if len({tuple(task.env for task in result.tasks) for result in results}) > 1:
        texts.append("Recipes with different tasks are not comparable over tasks; compare them per task.")
    if results and not any(result.has_interval for result in results):
        texts.append("One run per task: there is no interval, and the difference may be chance.")
    texts.append(
        "Normalised return: (return - random) / (reference - random) of the last evaluation; random is the "
        "return of random actions. A time is that of the first evaluation with a normalised return of 0.5 or "
        "0.9; evaluation time is excluded."
    )
    if any(result.has_interval for result in results):
        texts.append(
            f"IQM: interquartile mean of all runs, every task with the same weight; intervals: "
            f"{CONFIDENCE:.0%}, stratified bootstrap over the runs of each task."
        )
    return texts
