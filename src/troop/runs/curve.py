"""The learning curve of a run as a PNG: return against training time and against env steps."""

from __future__ import annotations

import io
import json
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
    """The values of one metric over the run."""

    minutes: list[float]
    env_steps: list[float]
    values: list[float]
    spread: list[float]


def plot(run: Path, out: Path) -> Path:
    """Draw the learning curve of a run to the PNG file `out` and return its path.

    Raises BadInput if there is no return yet, and SetupProblem if matplotlib is missing or the disk fails.
    """
    metrics = read_rows(run)
    evaluations, episodes = _curve(metrics, RETURN, SPREAD), _curve(metrics, TRAINING, None)
    if not evaluations.values and not episodes.values:
        raise BadInput(f"{run / METRICS} has no return yet; wait for the first evaluation of the run.")
    title, target = _title_and_target(run)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SetupProblem("Plots need matplotlib: pip install 'trooprl[plots]'.") from error
    # Figure without pyplot needs no display and no global state.
    figure = Figure(figsize=(11, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    _draw(left, "minutes", "training minutes", evaluations, episodes, target)
    _draw(right, "env_steps", "env steps", evaluations, episodes, target)
    left.set_ylabel("return")
    right.legend(loc="lower right", frameon=False, fontsize=9)
    figure.suptitle(title, fontsize=13, fontweight="bold")
    image = io.BytesIO()
    figure.savefig(image, format="png")
    files.replace_file(out, image.getvalue())
    return out


def _draw(
    axes: Any,  # noqa: ANN401 - matplotlib has no types here
    x: str,
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
            getattr(episodes, x), episodes.values, color=_GRAY, linewidth=0.8, label="training episodes"
        )
    if evaluations.values:
        position, mean = getattr(evaluations, x), evaluations.values
        low = [m - s for m, s in zip(mean, evaluations.spread, strict=True)]
        high = [m + s for m, s in zip(mean, evaluations.spread, strict=True)]
        axes.fill_between(position, low, high, color=_BLUE, alpha=0.18, linewidth=0)
        marker = "o" if len(mean) <= 40 else None
        axes.plot(position, mean, color=_BLUE, linewidth=2, marker=marker, markersize=3.5, label="evaluation")
    if x == "env_steps":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel(label)
    axes.set_xlim(left=0)
    axes.margins(x=0.02)
    axes.grid(color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0, colors="#374151")


def read_rows(run: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl; damaged lines and an incomplete last line are skipped."""
    rows = []
    try:
        with files.open_regular(run / METRICS) as file:
            for line in file:
                try:
                    row = json.loads(line, parse_constant=lambda _: None)
                except (ValueError, RecursionError):
                    continue
                if isinstance(row, dict):
                    rows.append(row)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadInput(f"{run / METRICS} cannot be read ({reason}); give the directory of a run.") from error
    return rows


def _curve(rows: list[dict[str, Any]], name: str, spread: str | None) -> _Curve:
    curve = _Curve([], [], [], [])
    for row in rows:
        wall_s, steps, value = (
            files.finite_number(row.get("wall_s")),
            files.finite_number(row.get("env_steps")),
            files.finite_number(row.get(name)),
        )
        if wall_s is None or steps is None or value is None:
            continue
        curve.minutes.append(wall_s / 60)
        curve.env_steps.append(steps)
        curve.values.append(value)
        curve.spread.append(files.finite_number(row.get(spread)) or 0.0 if spread else 0.0)
    return curve


def _title_and_target(run: Path) -> tuple[str, float | None]:
    """Title and target from summary.json, else from config.json; both files may be missing."""
    fields: dict[str, Any] = {}
    for name in (CONFIG, SUMMARY):
        try:
            fields |= {
                key: value for key, value in files.read_object(run / name).items() if value is not None
            }
        except (OSError, ValueError):
            continue
    env, until = fields.get("env"), fields.get("until")
    env = env.get("id") if isinstance(env, dict) else env
    names = [name for name in (env, fields.get("recipe")) if isinstance(name, str) and name]
    nested = until.get("target") if isinstance(until, dict) else None
    title = "  ·  ".join(names) or run.name
    return title.replace("$", r"\$"), files.finite_number(
        fields.get("target", nested)
    )  # matplotlib reads $ as the start of a formula
