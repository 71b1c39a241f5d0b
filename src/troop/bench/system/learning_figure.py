"""Draw the scaling figure: return against time, and time to the threshold against the number of actors."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from troop.core.errors import SetupProblem
from troop.runs import files

if TYPE_CHECKING:
    from troop.bench.system.learning import LearningRun

COLORS = ("#9ecae1", "#6baed6", "#3182bd", "#08519c")  # darker with more actors


def draw(runs: dict[int, list[LearningRun]], target: float, out: Path) -> Path:
    """Draw the runs of each number of actors into the PNG `out`; raise SetupProblem without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SetupProblem("The figure needs matplotlib: pip install 'trooprl[plots]'.") from error
    figure = Figure(figsize=(9.5, 3.8), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for (actors, group), color in zip(runs.items(), COLORS, strict=False):
        for index, run in enumerate(group):
            label = f"{actors} actor{'s' if actors > 1 else ''}" if index == 0 else None
            left.plot(*zip(*run.curve, strict=True), color=color, label=label, linewidth=1.3)
    left.axhline(target, color="#9ca3af", linestyle="--", linewidth=1)
    left.set(xlabel="training seconds", ylabel="return", title="Slow CartPole, one line per seed")
    left.legend(frameon=False, fontsize=9)
    _draw_times(right, runs, target)
    try:
        figure.savefig(out, format="png")
    except OSError as error:
        raise files.disk_problem("write", out, error) from error
    return out


def _draw_times(axes: Any, runs: dict[int, list[LearningRun]], target: float) -> None:  # noqa: ANN401 - matplotlib
    counts = list(runs)
    for actors, group in runs.items():
        reached = [run.seconds for run in group if math.isfinite(run.seconds)]
        axes.plot([actors] * len(reached), reached, "o", color="#9ecae1", markersize=5)
    medians = [statistics.median(run.seconds for run in group) for group in runs.values()]
    axes.plot(counts, medians, "-", color="#08519c", label="median of seeds")
    if math.isfinite(medians[0]):
        ideal = [medians[0] * counts[0] / actors for actors in counts]
        axes.plot(counts, ideal, ":", color="#9ca3af", label="linear speed-up")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(counts, [str(actors) for actors in counts])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    axes.set(xlabel="actors", ylabel=f"seconds to {target:.0f}", title="Time to the threshold")
    axes.legend(frameon=False, fontsize=9)
