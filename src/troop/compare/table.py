"""Format results as Markdown, as a terminal table, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import math
from typing import TYPE_CHECKING, Any

from troop.compare.machine import describe
from troop.compare.plan import ComparisonPlan
from troop.compare.ranking import CurveBand, RecipeResult, TimeToThreshold, answer, format_seconds
from troop.compare.run_result import RunResult
from troop.compare.statistics import first_crossing, median_time
from troop.logs.progress import count, number

if TYPE_CHECKING:
    from rich.table import Table

CSV_COLUMNS = (
    "recipe",
    "seed",
    "status",
    "return",
    "wall_s",
    "env_steps",
    "updates",
    "evaluation_s",
    "restarts",
    "resumed",
    "background_load",
)
SUMMARY_FIELDS = ("wall_s", "env_steps", "updates", "evaluation_s", "restarts")
AXES = ("seconds", "env_steps")


def cells(results: list[RecipeResult]) -> list[list[str]]:
    """Return the table as text: the heading, then one row per recipe."""
    thresholds = [number(t.threshold) for t in results[0].thresholds]
    head = ["recipe", "runs", "return (IQM)", "95 % interval"]
    head += [f"time to {threshold}" for threshold in thresholds]
    head += [f"steps to {threshold}" for threshold in thresholds[-1:]] + ["env steps/s"]
    return [head, *(_row(result) for result in results)]


def _row(result: RecipeResult) -> list[str]:
    final = result.final_return
    has_interval = final is not None and len(result.done_runs) > 1
    steps = [median_time(t.env_steps) for t in result.thresholds[-1:]]
    rate = result.env_steps_per_s
    return [
        result.recipe,
        _runs(result),
        number(final[0]) if final else "-",
        f"{number(final[1])} to {number(final[2])}" if final and has_interval else "-",
        *(_time(t) for t in result.thresholds),
        *(count(value) if math.isfinite(value) else "-" for value in steps),
        count(rate) if rate is not None else "-",
    ]


def _runs(result: RecipeResult) -> str:
    failed = sum(run.status == "failed" for run in result.runs)
    done = f"{len(result.done_runs)} of {len(result.runs)}"
    return f"{done}, {failed} failed" if failed else done


def _time(time: TimeToThreshold) -> str:
    """Format the median; add how many runs reached the threshold unless all did."""
    text = format_seconds(time.median_seconds) if math.isfinite(time.median_seconds) else "-"
    total = len(time.seconds)
    return text if time.reached == total else f"{text} ({time.reached} of {total})"


def as_rich(plan: ComparisonPlan, results: list[RecipeResult]) -> Table:
    """Return the table for a terminal."""
    from rich.table import Table

    head, *rows = cells(results)
    table = Table(title=plan.title, title_justify="left", title_style="bold")
    for column, name in enumerate(head):
        table.add_column(name, justify="left" if column == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table


def as_markdown(
    plan: ComparisonPlan, results: list[RecipeResult], notes: list[str], figure: str | None
) -> str:
    """Return the page results.md: answer, table, figure, machine, notes."""
    head, *rows = cells(results)
    rule = ["---", *("---:" for _ in head[1:])]
    table = "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows])
    flags = f" Flags: `{' '.join(plan.flags)}`." if plan.flags else ""
    bullets = "\n".join(f"* {text}" for text in notes)
    image = f"![curves]({figure})\n\n" if figure else ""
    return (
        f"# {plan.title}\n\n{answer(results)}\n\n{table}\n\n{image}"
        f"Machine: {describe(plan.machine)}.{flags}\n\n{bullets}\n"
    )


def as_csv(results: list[RecipeResult]) -> str:
    """Return one line per run; a cell is empty where a threshold was not reached or a value is unknown."""
    thresholds = [t.threshold for t in results[0].thresholds]
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    times = [f"{axis}_to_{threshold:g}" for threshold in thresholds for axis in AXES]
    writer.writerow([*CSV_COLUMNS, *times, "reason"])
    for run in (run for result in results for run in result.runs):
        values = _run_json(run, thresholds)
        row = [values[name] for name in CSV_COLUMNS]
        row += [values["reached"][f"{threshold:g}"][axis] for threshold in thresholds for axis in AXES]
        writer.writerow(["" if value is None else value for value in [*row, run.reason]])
    return page.getvalue()


def as_json(plan: ComparisonPlan, results: list[RecipeResult], notes: list[str]) -> dict[str, Any]:
    """Return plan, machine, answer, notes, recipes with their curves, and runs as JSON values."""
    thresholds = [t.threshold for t in results[0].thresholds]
    return {
        "env": plan.env,
        "budget": {"minutes": plan.minutes, "env_steps": plan.env_steps},
        "seeds": plan.seeds,
        "flags": list(plan.flags),
        "variants": {name: list(words) for name, words in plan.variants.items()},
        "machine": plan.machine,
        "thresholds": thresholds,
        "answer": answer(results),
        "notes": notes,
        "recipes": [_recipe_json(result) for result in results],
        "runs": [_run_json(run, thresholds) for result in results for run in result.runs],
    }


def _recipe_json(result: RecipeResult) -> dict[str, Any]:
    value, low, high = result.final_return or (None, None, None)
    if len(result.done_runs) < 2:
        low = high = None
    reached = [
        {
            "threshold": t.threshold,
            "seconds": _finite(t.median_seconds),
            "env_steps": _finite(median_time(t.env_steps)),
            "runs_reached": t.reached,
            "runs": len(t.seconds),
        }
        for t in result.thresholds
    ]
    return {
        "recipe": result.recipe,
        "runs_done": len(result.done_runs),
        "return": {"iqm": value, "low": low, "high": high},
        "reached": reached,
        "env_steps_per_s": result.env_steps_per_s,
        "by_seconds": _band_json(result.by_seconds),
        "by_env_steps": _band_json(result.by_env_steps),
    }


def _run_json(run: RunResult, thresholds: list[float]) -> dict[str, Any]:
    """Return one run; None where a threshold was not reached or a value is unknown."""
    reached = {
        f"{threshold:g}": {
            "seconds": _finite(first_crossing(run.seconds, run.returns, threshold)),
            "env_steps": _finite(first_crossing(run.env_steps, run.returns, threshold)),
        }
        for threshold in thresholds
    }
    return {
        "recipe": run.recipe,
        "seed": run.seed,
        "status": run.status,
        "return": float(run.returns[-1]) if len(run.returns) else None,
        **{name: getattr(run.summary, name) if run.summary else None for name in SUMMARY_FIELDS},
        "resumed": run.resumed,
        "background_load": run.background_load,
        "ended_early": run.ended_early,
        "reason": run.reason,
        "reached": reached,
    }


def _band_json(band: CurveBand | None) -> dict[str, list[float]] | None:
    if band is None:
        return None
    return {name: getattr(band, name).tolist() for name in ("x", "iqm", "low", "high")}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
