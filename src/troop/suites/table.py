"""Format the results of a suite as Markdown, as terminal tables, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import numpy as np

from troop.compare.machine import describe
from troop.compare.ranking import CurveBand, RecipeResult, format_seconds
from troop.compare.statistics import first_crossing
from troop.compare.table import SUMMARY_FIELDS, finite, format_runs, format_time, markdown_table, recipe_json
from troop.logs.progress import number
from troop.suites.pairs import TimeRatio, time_ratios
from troop.suites.plan import SuitePlan
from troop.suites.results import FRACTIONS, SuiteResult, TaskResult, time_to

TIMES = [f"time to {fraction:.0%}".replace("%", " %") for fraction in FRACTIONS]
CSV_COLUMNS = ("task", "recipe", "external", "seed", "status", "return", "normalised", "random", "reference")


def title(suite: SuitePlan, tasks: list[TaskResult]) -> str:
    """Return suite, number of tasks, budget and number of seeds as text."""
    plan = tasks[0].plan
    seeds = sorted({task.plan.seeds for task in tasks})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    number_of = f"{len(tasks)} task{'' if len(tasks) == 1 else 's'}"
    name = f"{suite.suite}, {number_of}" if suite.suite else number_of
    return f"{name}, {plan.budget} each, {count} seed{'' if count == '1' else 's'}"


def answer(results: list[SuiteResult]) -> str:
    """State in one sentence which recipe has the highest normalised return, if all have the same tasks."""
    if not results:
        return "No run is done yet."
    if len({frozenset(task.env for task in result.tasks) for result in results}) > 1:
        texts = [f"{result.label} {_iqm_of_tasks(result)}" for result in results]
        return f"Not ranked, because the done runs are on different tasks: {', '.join(texts)}."
    first, *others = results
    text = f"Highest normalised return: {first.label}, {_iqm_of_tasks(first)}"
    return f"{text}; next {others[0].label}, {others[0].iqm:z.2f}." if others else f"{text}."


def _iqm_of_tasks(result: SuiteResult) -> str:
    count = len(result.tasks)
    return f"{result.iqm:z.2f} (IQM of {count} task{'s' * (count > 1)})"


def suite_cells(results: list[SuiteResult], tasks: list[TaskResult]) -> list[list[str]]:
    """Return the table over tasks as text: the heading, then one row per recipe."""
    head = ["recipe", "tasks", "runs", "normalised return (IQM)", "95 % interval", *TIMES]
    return [head, *(_suite_row(result, len(tasks)) for result in results)]


def _suite_row(result: SuiteResult, tasks: int) -> list[str]:
    return [
        result.label,
        f"{len(result.tasks)} of {tasks}",
        str(result.runs),
        f"{result.iqm:z.2f}",
        f"{result.low:z.2f} to {result.high:z.2f}" if result.has_interval else "-",
        *(_median_time(result, fraction) for fraction in FRACTIONS),
    ]


def _median_time(result: SuiteResult, fraction: float) -> str:
    """Format the median over tasks; add how many tasks reached the fraction unless all did."""
    median, reached = result.median_time(fraction), result.tasks_reached(fraction)
    text = format_seconds(median) if math.isfinite(median) else "-"
    total = len(result.tasks)
    return text if reached == total else f"{text} ({reached} of {total} task{'' if total == 1 else 's'})"


def task_cells(tasks: list[TaskResult]) -> list[list[str]]:
    """Return the table per task as text: the heading, then one row per task and recipe."""
    head = ["task", "recipe", "runs", "return (IQM)", "95 % interval", "reference", "normalised", *TIMES]
    return [head, *(_task_row(task, result) for task in tasks for result in task.recipes.values())]


def _task_row(task: TaskResult, result: RecipeResult) -> list[str]:
    final, score = result.final_return, task.score(result.recipe)
    has_interval = final is not None and len(result.done_runs) > 1
    return [
        task.env,
        result.label,
        format_runs(result),
        number(final[0]) if final else "-",
        f"{number(final[1])} to {number(final[2])}" if final and has_interval else "-",
        number(task.reference),
        f"{score:z.2f}" if score is not None else "-",
        *(format_time(time_to(result, fraction)) for fraction in FRACTIONS),
    ]


def ratio_cells(ratios: list[TimeRatio]) -> list[list[str]]:
    """Return the table of time ratios to external programs as text."""
    head = ["recipe", "external", "tasks", "faster on", "time to 90 %, ratio (median)", "worst ratio"]
    rows = [
        [r.recipe, r.external, str(r.tasks), str(r.faster), _ratio(r.median) if r.ratios else "-", _worst(r)]
        for r in ratios
    ]
    return [head, *rows]


def _ratio(value: float) -> str:
    return f"{value:z.2f}" if math.isfinite(value) else "never reached"


def _worst(ratio: TimeRatio) -> str:
    return f"{_ratio(ratio.worst[1])} ({ratio.worst[0]})" if ratio.worst else "-"


def reference_cells(tasks: list[TaskResult]) -> list[list[str]]:
    """Return the table of references as text."""
    rows = [[task.env, number(task.random), number(task.reference), task.source] for task in tasks]
    return [["task", "random", "reference", "source of the reference"], *rows]


def as_markdown(
    suite: SuitePlan,
    tasks: list[TaskResult],
    results: list[SuiteResult],
    notes: list[str],
    figure: str | None,
) -> str:
    """Return the page results.md: answer, tables, figure, machine, notes."""
    plan = tasks[0].plan
    flags = f" Flags: `{' '.join(plan.flags)}`." if plan.flags else ""
    image = f"![curves]({figure})\n\n" if figure else ""
    bullets = "\n".join(f"* {text}" for text in notes)
    over_tasks = markdown_table(suite_cells(results, tasks))
    ratios = time_ratios(tasks)
    beside = f"## External programs\n\n{markdown_table(ratio_cells(ratios), 2)}\n\n" if ratios else ""
    return (
        f"# {title(suite, tasks)}\n\n{answer(results)}\n\n{over_tasks}\n\n{image}"
        f"{beside}## Tasks\n\n{markdown_table(task_cells(tasks), 2)}\n\n"
        f"## References\n\n{markdown_table(reference_cells(tasks))}\n\n"
        f"Machine: {describe(plan.machine)}.{flags}\n\n{bullets}\n"
    )


def as_csv(tasks: list[TaskResult]) -> str:
    """Return one line per run; a cell is empty where a level was not reached or a value is unknown."""
    rows = runs_json(tasks)
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    columns = [*CSV_COLUMNS, *_time_columns(), *SUMMARY_FIELDS, "reason"]
    writer.writerow(columns)
    for row in rows:
        writer.writerow(["" if row[name] is None else row[name] for name in columns])
    return page.getvalue()


def _time_columns() -> list[str]:
    return [
        f"{axis}_to_{fraction:.0%}".rstrip("%") for fraction in FRACTIONS for axis in ("seconds", "env_steps")
    ]


def runs_json(tasks: list[TaskResult]) -> list[dict[str, Any]]:
    """Return every run of every task; None where a level was not reached or a value is unknown."""
    rows = []
    for task in tasks:
        for run in (run for result in task.recipes.values() for run in result.runs):
            last = float(run.returns[-1]) if len(run.returns) else None
            crossings = [
                finite(first_crossing(x, run.returns, level))
                for level in task.plan.thresholds
                for x in (run.seconds, run.env_steps)
            ]
            rows.append(
                {
                    "task": task.env,
                    "recipe": run.recipe,
                    "external": run.external,
                    "seed": run.seed,
                    "status": run.status,
                    "return": last,
                    "normalised": None if last is None else float(task.normalise(np.array([last]))[0]),
                    "random": task.random,
                    "reference": task.reference,
                    **dict(zip(_time_columns(), crossings, strict=True)),
                    **{name: getattr(run.summary, name, None) for name in SUMMARY_FIELDS},
                    "reason": run.reason,
                }
            )
    return rows


def as_json(
    suite: SuitePlan, tasks: list[TaskResult], results: list[SuiteResult], notes: list[str]
) -> dict[str, Any]:
    """Return suite, budget, machine, answer, notes, recipes over tasks, tasks and runs as JSON values."""
    plan = tasks[0].plan
    return {
        "suite": suite.suite,
        "budget": {"minutes": plan.minutes, "env_steps": plan.env_steps},
        "flags": list(plan.flags),
        "machine": plan.machine,
        "answer": answer(results),
        "notes": notes,
        "left_out": suite.left_out,
        "recipes": [_suite_json(result) for result in results],
        "time_ratios": [_ratio_json(ratio) for ratio in time_ratios(tasks)],
        "tasks": [_task_json(task) for task in tasks],
        "runs": runs_json(tasks),
    }


def _suite_json(result: SuiteResult) -> dict[str, Any]:
    return {
        "recipe": result.recipe,
        "tasks": [task.env for task in result.tasks],
        "runs": result.runs,
        "normalised_return": {
            "iqm": result.iqm,
            "low": result.low if result.has_interval else None,
            "high": result.high if result.has_interval else None,
        },
        "reached": [
            {
                "fraction": fraction,
                "tasks": result.tasks_reached(fraction),
                "median_seconds": finite(result.median_time(fraction)),
            }
            for fraction in FRACTIONS
        ],
        "performance_profile": _band_json(result.profile),
        "by_seconds": _band_json(result.curve),
    }


def _ratio_json(ratio: TimeRatio) -> dict[str, Any]:
    """Return the ratios of a pair; None where only the external program reached 90 %."""
    return {
        "recipe": ratio.recipe,
        "external": ratio.external,
        "tasks": ratio.tasks,
        "faster": ratio.faster,
        "median": finite(ratio.median),
        "ratios": {env: finite(value) for env, value in ratio.ratios.items()},
    }


def _task_json(task: TaskResult) -> dict[str, Any]:
    return {
        "task": task.env,
        "random": task.random,
        "reference": task.reference,
        "source": task.source,
        "published": task.published,
        "seeds": task.plan.seeds,
        "recipes": [
            recipe_json(result) | {"normalised": task.score(result.recipe)}
            for result in task.recipes.values()
        ],
    }


def _band_json(band: CurveBand) -> dict[str, list[float]]:
    return {name: getattr(band, name).tolist() for name in ("x", "iqm", "low", "high")}
