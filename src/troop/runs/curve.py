"""The learning curve of a run as a picture: return against training time and against env steps."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from troop.core.errors import BadInput, SetupProblem
from troop.runs import files
from troop.runs.directory import CONFIG, METRICS, SUMMARY

RETURN, SPREAD, TRAINING = "eval/return_mean", "eval/return_std", "train/return"
_BLUE, _GRAY, _GREEN = "#2563eb", "#9ca3af", "#16a34a"


@dataclass(frozen=True)
class _Curve:
    """One name's values over the run."""

    minutes: list[float]
    env_steps: list[float]
    values: list[float]
    spread: list[float]


def plot(run: Path, out: Path) -> Path:
    """Draw the run's learning curve into the PNG `out`; BadInput if it has no metrics yet."""
    found = rows(run)
    evaluations, episodes = _curve(found, RETURN, SPREAD), _curve(found, TRAINING, None)
    if not evaluations.values and not episodes.values:
        raise BadInput(f"{run / METRICS} holds no return yet; let the run reach its first evaluation.")
    title, target = _about(run)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SetupProblem("Plots need matplotlib: pip install 'trooprl[plots]'.") from error
    figure = Figure(
        figsize=(11, 4.2), dpi=150, layout="constrained"
    )  # no pyplot: no global state, no display
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    _draw(left, "minutes", "training minutes", evaluations, episodes, target)
    _draw(right, "env_steps", "env steps", evaluations, episodes, target)
    left.set_ylabel("return")
    right.legend(loc="lower right", frameon=False, fontsize=9)
    figure.suptitle(title, fontsize=13, fontweight="bold")
    try:
        figure.savefig(out, format="png")
    except OSError as error:
        raise files.disk_problem("write", out, error) from error
    return out


def _draw(
    axes: Any,  # noqa: ANN401 - matplotlib has no types here
    across: str,
    label: str,
    evaluations: _Curve,
    episodes: _Curve,
    target: float | None,
) -> None:
    from matplotlib.ticker import EngFormatter

    if target is not None:
        axes.axhline(target, color=_GREEN, linewidth=1, linestyle=(0, (4, 3)), label=f"target {target:g}")
    if episodes.values:
        axes.plot(
            getattr(episodes, across), episodes.values, color=_GRAY, linewidth=0.8, label="training episodes"
        )
    if evaluations.values:
        where, mean = getattr(evaluations, across), evaluations.values
        low = [m - s for m, s in zip(mean, evaluations.spread, strict=True)]
        high = [m + s for m, s in zip(mean, evaluations.spread, strict=True)]
        axes.fill_between(where, low, high, color=_BLUE, alpha=0.18, linewidth=0)
        dots = "o" if len(mean) <= 40 else None
        axes.plot(where, mean, color=_BLUE, linewidth=2, marker=dots, markersize=3.5, label="evaluation")
    if across == "env_steps":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel(label)
    axes.set_xlim(left=0)
    axes.margins(x=0.02)
    axes.grid(color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0, colors="#374151")


def rows(run: Path) -> list[dict[str, Any]]:
    """Read the rows of metrics.jsonl, passing over damage and a last line that is still being written."""
    found = []
    try:
        with open(run / METRICS, "rb") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(row, dict):
                    found.append(row)
    except OSError as error:
        raise BadInput(
            f"{run / METRICS} cannot be read ({error.strerror}); give the directory of a run."
        ) from error
    return found


def _curve(found_rows: list[dict[str, Any]], name: str, spread: str | None) -> _Curve:
    found = _Curve([], [], [], [])
    for row in found_rows:
        wall_s, steps, value = (
            _number(row.get("wall_s")),
            _number(row.get("env_steps")),
            _number(row.get(name)),
        )
        if wall_s is None or steps is None or value is None:
            continue
        found.minutes.append(wall_s / 60)
        found.env_steps.append(steps)
        found.values.append(value)
        found.spread.append(_number(row.get(spread)) or 0.0 if spread else 0.0)
    return found


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _about(run: Path) -> tuple[str, float | None]:
    """Find title and target in summary.json, else in config.json; neither is needed."""
    known: dict[str, Any] = {}
    for name in (CONFIG, SUMMARY):
        try:
            known |= {key: value for key, value in files.read_object(run / name).items() if value is not None}
        except (OSError, ValueError):
            continue
    env, until = known.get("env"), known.get("until")
    env = env.get("id") if isinstance(env, dict) else env
    words = [str(word) for word in (env, known.get("recipe")) if isinstance(word, str) and word]
    nested = until.get("target") if isinstance(until, dict) else None
    title = "  ·  ".join(words) or run.name
    return title.replace("$", r"\$"), _number(known.get("target", nested))  # a dollar would start a formula
