"""The comparison as a picture: return against time and env steps, and when thresholds were reached."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from troop.compare.plan import Plan
from troop.compare.ranking import CurveBand, RecipeResult
from troop.core.errors import SetupProblem
from troop.logs.progress import number
from troop.runs import files

# Okabe and Ito: told apart also by those who see few colours.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#a08c00")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1)))  # once the colours are used up
_GRAY = "#6b7280"


def draw(plan: Plan, found: list[RecipeResult], out: Path) -> Path:
    """Draw into the PNG `out`; SetupProblem without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SetupProblem("The figure needs matplotlib: pip install 'trooprl[plots]'.") from error
    figure = Figure(figsize=(15, 4.6), dpi=130, layout="constrained")  # no pyplot: no state, no display
    FigureCanvasAgg(figure)
    time, steps, goals = figure.subplots(1, 3, width_ratios=(1, 1, 0.8))
    steps.sharey(time)
    styles = {recipe: _style(position) for position, recipe in enumerate(plan.recipes)}
    unit, name = (60, "minutes") if _longest(found) >= 120 else (1, "seconds")
    for standing in reversed(found):  # the best on top
        _curve(time, standing.by_time, unit, standing.recipe, styles)
        _curve(steps, standing.by_steps, 1, standing.recipe, styles)
    for axes in (time, steps):
        for reach in found[0].reached:
            axes.axhline(reach.threshold, color=_GRAY, linewidth=0.8, linestyle=(0, (1, 3)), zorder=0)
    _dress(time, f"training {name}")
    _dress(steps, "env steps")
    time.set_ylabel("return (interquartile mean)")
    handles, labels = time.get_legend_handles_labels()
    time.legend(handles[::-1], labels[::-1], loc="best", frameon=False, fontsize=9)
    _goals(goals, found, unit, name, styles)
    figure.suptitle(plan.title.replace("$", r"\$"), fontsize=13, fontweight="bold")
    try:
        figure.savefig(out, format="png")
    except OSError as error:
        raise files.disk_problem("write", out, error) from error
    return out


def _style(position: int) -> tuple[str, Any]:
    return COLORS[position % len(COLORS)], DASHES[position // len(COLORS) % len(DASHES)]


def _longest(found: list[RecipeResult]) -> float:
    return max((float(standing.by_time.at[-1]) for standing in found if standing.by_time), default=0.0)


def _curve(axes: Any, band: CurveBand | None, unit: float, recipe: str, styles: dict[str, Any]) -> None:  # noqa: ANN401
    """A staircase: between evaluations the last one stands."""
    if band is None:
        return
    color, dashes = styles[recipe]
    axes.fill_between(band.at / unit, band.low, band.high, step="post", color=color, alpha=0.15, linewidth=0)
    dots = "o" if len(band.at) == 1 else None
    axes.plot(
        band.at / unit,
        band.middle,
        drawstyle="steps-post",
        color=color,
        linestyle=dashes,
        linewidth=1.8,
        marker=dots,
        label=recipe,
    )


def _goals(axes: Any, found: list[RecipeResult], unit: float, name: str, styles: dict[str, Any]) -> None:  # noqa: ANN401
    """A row a threshold and recipe: a dot a run, a bar at the median, at the edge who did not get there."""
    edge = 1.08 * max(_longest(found) / unit, 1e-9)
    thresholds = [reach.threshold for reach in found[0].reached]
    height = 0.8 / max(1, len(found))
    for level in range(len(thresholds)):
        for place, standing in enumerate(found):
            reach, color = standing.reached[level], styles[standing.recipe][0]
            y = level + 0.4 - height * (place + 0.5)
            for seconds in reach.seconds:
                there = math.isfinite(seconds)
                face = color if there else "none"
                x = seconds / unit if there else edge
                axes.plot(
                    x, y, "o" if there else "x", color=color, markerfacecolor=face, markersize=4.5, alpha=0.8
                )
            if math.isfinite(reach.time):
                axes.plot(reach.time / unit, y, "|", color=color, markersize=13, markeredgewidth=2.5)
    axes.set_yticks(np.arange(len(thresholds)), [number(threshold) for threshold in thresholds])
    axes.set_ylim(-0.6, max(len(thresholds), 1) - 0.4)
    axes.set_title("reached after (x: not reached)", fontsize=10, color=_GRAY)
    _dress(axes, f"training {name}")
    axes.set_xlim(0, edge * 1.05)


def _dress(axes: Any, label: str) -> None:  # noqa: ANN401 - matplotlib has no types here
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
