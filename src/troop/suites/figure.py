"""Draw results.png: performance profile, normalised return over training time, and a panel per task."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from troop.compare.figure import draw_band, format_axes, line_styles, new_figure, save_figure
from troop.suites.results import FRACTIONS, SuiteResult, TaskResult

COLUMNS = 4  # panels of tasks in a row
_GRAY = "#6b7280"

Styles = dict[str, tuple[str, Any]]


def draw(heading: str, tasks: list[TaskResult], results: list[SuiteResult], out: Path) -> Path:
    """Draw into the PNG `out`; raise SetupProblem without matplotlib or if the file cannot be written."""
    rows = math.ceil(len(tasks) / COLUMNS)
    figure = new_figure((14, 4.2 + 2.5 * rows))
    top, bottom = figure.subfigures(2, 1, height_ratios=(4.2, 2.5 * rows))
    styles = line_styles([recipe for task in tasks for recipe in task.recipes])
    seconds = [run.seconds[-1] for task in tasks for r in task.recipes.values() for run in r.done_runs]
    unit, unit_name = (60, "minutes") if max(seconds, default=0.0) >= 120 else (1, "seconds")
    _draw_suite(top, results, styles, unit, unit_name)
    panels = list(bottom.subplots(rows, COLUMNS, squeeze=False).flat)
    for axes, task in zip(panels, tasks, strict=False):
        _draw_task(axes, task, styles, unit)
    for axes in panels[len(tasks) :]:
        axes.set_axis_off()
    bottom.supxlabel(
        f"training {unit_name}; lines: return (interquartile mean), dotted: 50, 90 and 100 % of the "
        "reference",
        fontsize=9,
        color=_GRAY,
    )
    figure.suptitle(heading.replace("$", r"\$"), fontsize=13, fontweight="bold")
    return save_figure(figure, out)


def _draw_suite(figure: Any, results: list[SuiteResult], styles: Styles, unit: float, unit_name: str) -> None:  # noqa: ANN401
    profile_axes, time_axes = figure.subplots(1, 2)
    for result in reversed(results):  # the best recipe on top
        draw_band(profile_axes, result.profile, 1, result.label, styles[result.recipe])
        draw_band(time_axes, result.curve, unit, result.label, styles[result.recipe])
    format_axes(profile_axes, "normalised return")
    profile_axes.set_ylabel("share of runs above it")
    profile_axes.set_ylim(-0.02, 1.02)
    format_axes(time_axes, f"training {unit_name}")
    time_axes.set_ylabel("normalised return (IQM)")
    handles, labels = profile_axes.get_legend_handles_labels()
    if handles:
        profile_axes.legend(handles[::-1], labels[::-1], loc="best", frameon=False, fontsize=9)


def _draw_task(axes: Any, task: TaskResult, styles: Styles, unit: float) -> None:  # noqa: ANN401
    for result in task.recipes.values():
        draw_band(axes, result.by_seconds, unit, result.label, styles[result.recipe])
    for fraction in (*FRACTIONS, 1.0):
        level = task.random + fraction * (task.reference - task.random)
        axes.axhline(level, color=_GRAY, linewidth=0.8, linestyle=(0, (1, 3)), zorder=0)
    format_axes(axes, "")
    axes.set_title(task.env, fontsize=10)
