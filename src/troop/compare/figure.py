"""Draw results.png: return against training time and env steps, and times to thresholds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from troop.compare.plan import ComparisonPlan
from troop.compare.ranking import CurveBand, RecipeResult
from troop.core.errors import SetupProblem
from troop.logs.progress import number
from troop.runs import files

# The palette of Okabe and Ito, which readers with colour blindness can tell apart.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#a08c00")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1)))  # change after each pass through the colours
_GRAY = "#6b7280"


def draw(plan: ComparisonPlan, results: list[RecipeResult], out: Path) -> Path:
    """Draw into the PNG `out`; raise SetupProblem without matplotlib or if the file cannot be written."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SetupProblem("The figure needs matplotlib: pip install 'trooprl[plots]'.") from error
    figure = Figure(figsize=(15, 4.6), dpi=130, layout="constrained")  # no pyplot: no state, no display
    FigureCanvasAgg(figure)
    time_axes, step_axes, threshold_axes = figure.subplots(1, 3, width_ratios=(1, 1, 0.8))
    step_axes.sharey(time_axes)
    styles = {recipe: _style(index) for index, recipe in enumerate(plan.recipes)}
    unit, unit_name = (60, "minutes") if _longest_seconds(results) >= 120 else (1, "seconds")
    for result in reversed(results):  # the best recipe on top
        _draw_band(time_axes, result.by_seconds, unit, result.recipe, styles)
        _draw_band(step_axes, result.by_env_steps, 1, result.recipe, styles)
    for axes in (time_axes, step_axes):
        for time in results[0].thresholds:
            axes.axhline(time.threshold, color=_GRAY, linewidth=0.8, linestyle=(0, (1, 3)), zorder=0)
    _format_axes(time_axes, f"training {unit_name}")
    _format_axes(step_axes, "env steps")
    time_axes.set_ylabel("return (interquartile mean)")
    handles, labels = time_axes.get_legend_handles_labels()
    time_axes.legend(handles[::-1], labels[::-1], loc="best", frameon=False, fontsize=9)
    _draw_thresholds(threshold_axes, results, unit, unit_name, styles)
    figure.suptitle(plan.title.replace("$", r"\$"), fontsize=13, fontweight="bold")
    try:
        figure.savefig(out, format="png")
    except OSError as error:
        raise files.disk_problem("write", out, error) from error
    return out


def _style(index: int) -> tuple[str, Any]:
    return COLORS[index % len(COLORS)], DASHES[index // len(COLORS) % len(DASHES)]


def _longest_seconds(results: list[RecipeResult]) -> float:
    return max((float(result.by_seconds.x[-1]) for result in results if result.by_seconds), default=0.0)


def _draw_band(axes: Any, band: CurveBand | None, unit: float, recipe: str, styles: dict[str, Any]) -> None:  # noqa: ANN401
    """Draw a staircase: between two evaluations the last value is kept."""
    if band is None:
        return
    color, dashes = styles[recipe]
    axes.fill_between(band.x / unit, band.low, band.high, step="post", color=color, alpha=0.15, linewidth=0)
    marker = "o" if len(band.x) == 1 else None
    axes.plot(
        band.x / unit,
        band.iqm,
        drawstyle="steps-post",
        color=color,
        linestyle=dashes,
        linewidth=1.8,
        marker=marker,
        label=recipe,
    )


def _draw_thresholds(
    axes: Any,  # noqa: ANN401 - matplotlib has no types here
    results: list[RecipeResult],
    unit: float,
    unit_name: str,
    styles: dict[str, Any],
) -> None:
    """Draw a row per threshold and recipe: a dot or, at the right edge, an x per run, a bar at the median."""
    edge = 1.08 * max(_longest_seconds(results) / unit, 1e-9)
    thresholds = [time.threshold for time in results[0].thresholds]
    height = 0.8 / max(1, len(results))
    for level in range(len(thresholds)):
        for index, result in enumerate(results):
            time, color = result.thresholds[level], styles[result.recipe][0]
            y = level + 0.4 - height * (index + 0.5)
            for seconds in time.seconds:
                reached = math.isfinite(seconds)
                axes.plot(
                    seconds / unit if reached else edge,
                    y,
                    "o" if reached else "x",
                    color=color,
                    markerfacecolor=color if reached else "none",
                    markersize=4.5,
                    alpha=0.8,
                )
            if math.isfinite(time.median_seconds):
                axes.plot(time.median_seconds / unit, y, "|", color=color, markersize=13, markeredgewidth=2.5)
    axes.set_yticks(np.arange(len(thresholds)), [number(threshold) for threshold in thresholds])
    axes.set_ylim(-0.6, max(len(thresholds), 1) - 0.4)
    axes.set_title("time to threshold (x: not reached)", fontsize=10, color=_GRAY)
    _format_axes(axes, f"training {unit_name}")
    axes.set_xlim(0, edge * 1.05)


def _format_axes(axes: Any, label: str) -> None:  # noqa: ANN401 - matplotlib has no types here
    from matplotlib.ticker import EngFormatter

    if label == "env steps":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel(label)
    axes.set_xlim(left=0)
    axes.grid(color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0, colors="#374151")
