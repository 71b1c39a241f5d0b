"""Draw results.png: return against training time and env steps, and times to thresholds."""

from __future__ import annotations

import io
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
    figure = new_figure((15, 4.6))
    time_axes, step_axes, threshold_axes = figure.subplots(1, 3, width_ratios=(1, 1, 0.8))
    step_axes.sharey(time_axes)
    styles = line_styles([*plan.recipes, *(result.recipe for result in results)])
    unit, unit_name = (60, "minutes") if _longest_seconds(results) >= 120 else (1, "seconds")
    for result in reversed(results):  # the best recipe on top
        draw_band(time_axes, result.by_seconds, unit, result.label, styles[result.recipe])
        draw_band(step_axes, result.by_env_steps, 1, result.label, styles[result.recipe])
    for axes in (time_axes, step_axes):
        for time in results[0].thresholds:
            axes.axhline(time.threshold, color=_GRAY, linewidth=0.8, linestyle=(0, (1, 3)), zorder=0)
    format_axes(time_axes, f"training {unit_name}")
    format_axes(step_axes, "env steps")
    time_axes.set_ylabel("return (interquartile mean)")
    handles, labels = time_axes.get_legend_handles_labels()
    time_axes.legend(handles[::-1], labels[::-1], loc="best", frameon=False, fontsize=9)
    _draw_thresholds(threshold_axes, results, unit, unit_name, styles)
    figure.suptitle(plan.title.replace("$", r"\$"), fontsize=13, fontweight="bold")
    return save_figure(figure, out)


def new_figure(size: tuple[float, float]) -> Any:  # noqa: ANN401 - matplotlib has no types here
    """Return a matplotlib Figure of `size` inches; SetupProblem without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SetupProblem("The figure needs matplotlib: pip install 'trooprl[plots]'.") from error
    figure = Figure(figsize=size, dpi=130, layout="constrained")  # no pyplot: no state, no display
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, out: Path) -> Path:  # noqa: ANN401 - matplotlib has no types here
    """Write the figure to the PNG file `out`; SetupProblem if the disk fails."""
    image = io.BytesIO()
    figure.savefig(image, format="png")
    files.replace_file(out, image.getvalue())
    return out


def line_styles(recipes: list[str]) -> dict[str, tuple[str, Any]]:
    """Return colour and dashes of each recipe; a name may occur twice."""
    return {
        recipe: (COLORS[index % len(COLORS)], DASHES[index // len(COLORS) % len(DASHES)])
        for index, recipe in enumerate(dict.fromkeys(recipes))
    }


def _longest_seconds(results: list[RecipeResult]) -> float:
    return max((float(result.by_seconds.x[-1]) for result in results if result.by_seconds), default=0.0)


def draw_band(
    axes: Any,  # noqa: ANN401 - matplotlib has no types here
    band: CurveBand | None,
    unit: float,
    label: str,
    style: tuple[str, Any],
) -> None:
    """Draw a staircase: between two evaluations the last value is kept."""
    if band is None:
        return
    color, dashes = style
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
        label=label,
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
    format_axes(axes, f"training {unit_name}")
    axes.set_xlim(0, edge * 1.05)


def format_axes(axes: Any, label: str) -> None:  # noqa: ANN401 - matplotlib has no types here
    """Label the x axis, which starts at 0, and draw a light grid."""
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
