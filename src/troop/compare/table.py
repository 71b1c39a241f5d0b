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
        result.label,
        format_runs(result),
        number(final[0]) if final else "-",
        f"{number(final[1])} to {number(final[2])}" if final and has_interval else "-",
        *(format_time(t) for t in result.thresholds),
        *(count(value) if math.isfinite(value) else "-" for value in steps),
        count(rate) if rate is not None else "-",
    ]


def format_runs(result: RecipeResult) -> str:
    """Format the numbers of done, planned and failed runs."""
    failed = sum(run.status == "failed" for run in result.runs)
    done = f"{len(result.done_runs)} of {len(result.runs)}"
    return f"{done}, {failed} failed" if failed else done


def format_time(time: TimeToThreshold) -> str:
    """Format the median; add how many runs reached the threshold unless all did."""
    text = format_seconds(time.median_seconds) if math.isfinite(time.median_seconds) else "-"
    total = len(time.seconds)
    return text if time.reached == total else f"{text} ({time.reached} of {total})"


def rich_table(rows: list[list[str]], title: str, text_columns: int = 1) -> Table:
    """Return a table for a terminal; all but the first columns are aligned to the right."""
    from rich.table import Table

    head, *body = rows
    table = Table(title=title, title_justify="left", title_style="bold")
    for column, name in enumerate(head):
        table.add_column(name, justify="left" if column < text_columns else "right")
    for row in body:
        table.add_row(*row)
    return table


def as_markdown(
    plan: ComparisonPlan, results: list[RecipeResult], notes: list[str], figure: str | None
) -> str:
    """Return the page results.md: answer, table, figure, machine, notes."""
    flags = f" Flags: `{' '.join(plan.flags)}`." if plan.flags else ""
    bullets = "\n".join(f"* {text}" for text in notes)
    image = f"![curves]({figure})\n\n" if figure else ""
    return (
        f"# {plan.title}\n\n{answer(results)}\n\n{markdown_table(cells(results))}\n\n{image}"
        f"Machine: {describe(plan.machine)}.{flags}\n\n{bullets}\n"
    )


def markdown_table(rows: list[list[str]], text_columns: int = 1) -> str:
    """Return a pipe table of the heading and the rows; all but the first columns are aligned to the right."""
    head, *body = rows
    rule = ["---" if column < text_columns else "---:" for column in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *body])


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
        "recipes": [recipe_json(result) for result in results],
        "runs": [_run_json(run, thresholds) for result in results for run in result.runs],
    }


def recipe_json(result: RecipeResult) -> dict[str, Any]:
    """Return one recipe with its curves as JSON values."""
    value, low, high = result.final_return or (None, None, None)
    if len(result.done_runs) < 2:
        low = high = None
    reached = [
        {
            "threshold": t.threshold,
            "seconds": finite(t.median_seconds),
            "env_steps": finite(median_time(t.env_steps)),
            "runs_reached": t.reached,
            "runs": len(t.seconds),
        }
        for t in result.thresholds
    ]
    return {
        "recipe": result.recipe,
        "external": result.external,
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
            "seconds": finite(first_crossing(run.seconds, run.returns, threshold)),
            "env_steps": finite(first_crossing(run.env_steps, run.returns, threshold)),
        }
        for threshold in thresholds
    }
    return {
        "recipe": run.recipe,
        "seed": run.seed,
        "external": run.external,
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


def finite(value: float) -> float | None:
    """Return the value, or None for infinity."""
    return value if math.isfinite(value) else None
