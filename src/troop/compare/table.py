"""The standings as Markdown, for the terminal, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import math
from typing import TYPE_CHECKING, Any

from troop.compare.machine import described
from troop.compare.plan import Plan
from troop.compare.ranking import CurveBand, RecipeResult, TimeToThreshold, answer, spell
from troop.compare.run_result import RunResult
from troop.compare.statistics import first_at, middle_time
from troop.logs.progress import count, number

if TYPE_CHECKING:
    from rich.table import Table


def cells(found: list[RecipeResult]) -> list[list[str]]:
    """Heading, then a line a recipe."""
    goals = found[0].reached
    head = ["recipe", "runs", "return (IQM)", "95 % interval"]
    head += [f"to {number(reach.threshold)}" for reach in goals]
    head += [f"steps to {number(reach.threshold)}" for reach in goals[-1:]] + ["env steps/s"]
    return [head, *(_line(standing) for standing in found)]


def _line(standing: RecipeResult) -> list[str]:
    final = standing.final
    several = final is not None and len(standing.done) > 1
    steps = [middle_time(reach.env_steps) for reach in standing.reached[-1:]]
    return [
        standing.recipe,
        _runs(standing),
        number(final[0]) if final else "-",
        f"{number(final[1])} to {number(final[2])}" if final and several else "-",
        *(_time(reach) for reach in standing.reached),
        *(count(value) if math.isfinite(value) else "-" for value in steps),
        count(standing.rate) if standing.rate is not None else "-",
    ]


def _runs(standing: RecipeResult) -> str:
    failed = sum(run.status == "failed" for run in standing.runs)
    done = f"{len(standing.done)} of {len(standing.runs)}"
    return f"{done}, {failed} failed" if failed else done


def _time(reach: TimeToThreshold) -> str:
    """The median; how many reached it unless all did."""
    said = spell(reach.time) if math.isfinite(reach.time) else "-"
    whole = reach.count == len(reach.seconds)
    return said if whole or not reach.seconds else f"{said} ({reach.count} of {len(reach.seconds)})"


def rich_table(plan: Plan, found: list[RecipeResult]) -> Table:
    """For a terminal."""
    from rich.table import Table

    head, *lines = cells(found)
    table = Table(title=plan.title, title_justify="left", title_style="bold")
    for position, name in enumerate(head):
        table.add_column(name, justify="left" if position == 0 else "right")
    for line in lines:
        table.add_row(*line)
    return table


def markdown(plan: Plan, found: list[RecipeResult], told: list[str], figure: str | None) -> str:
    """The page a reader opens."""
    head, *lines = cells(found)
    rule = ["---", *("---:" for _ in head[1:])]
    table = "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *lines])
    flags = f" Flags: `{' '.join(plan.flags)}`." if plan.flags else ""
    remarks = "\n".join(f"* {text}" for text in told)
    picture = f"![curves]({figure})\n\n" if figure else ""
    return (
        f"# {plan.title}\n\n{answer(found)}\n\n{table}\n\n{picture}"
        f"Machine: {described(plan.machine)}.{flags}\n\n{remarks}\n"
    )


def as_csv(found: list[RecipeResult]) -> str:
    """A line a run."""
    goals = [reach.threshold for reach in found[0].reached]
    head = [
        "recipe",
        "seed",
        "status",
        "return",
        "wall_s",
        "env_steps",
        "updates",
        "evaluation_s",
        "restarts",
    ]
    head += [
        "resumed",
        "busy",
        *(f"{what}_to_{g:g}" for g in goals for what in ("seconds", "env_steps")),
        "reason",
    ]
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(head)
    for standing in found:
        for run in standing.runs:
            known = as_object(run, goals)
            times = [
                known["reached"][f"{goal:g}"][what] for goal in goals for what in ("seconds", "env_steps")
            ]
            row = [known[name] for name in head[:11]] + [*times, run.reason]
            writer.writerow(["" if value is None else value for value in row])
    return page.getvalue()


def as_object(run: RunResult, goals: list[float]) -> dict[str, Any]:
    """One run as JSON values; None where a threshold was not reached or nothing is known."""
    found = run.summary
    counters = ("wall_s", "env_steps", "updates", "evaluation_s", "restarts")
    reached = {
        f"{goal:g}": {
            "seconds": _finite(first_at(run.seconds, run.returns, goal)),
            "env_steps": _finite(first_at(run.env_steps, run.returns, goal)),
        }
        for goal in goals
    }
    return {
        "recipe": run.recipe,
        "seed": run.seed,
        "status": run.status,
        "return": float(run.returns[-1]) if len(run.returns) else None,
        **{name: getattr(found, name) if found else None for name in counters},
        "resumed": run.resumed,
        "busy": run.busy,
        "early": run.early,
        "reason": run.reason,
        "reached": reached,
    }


def as_json(plan: Plan, found: list[RecipeResult], told: list[str]) -> dict[str, Any]:
    """Everything: plan, standings with their curves, runs, notes."""
    goals = [reach.threshold for reach in found[0].reached]
    budget = {"minutes": plan.minutes, "env_steps": plan.env_steps}
    recipes = []
    for standing in found:
        value, low, high = standing.final or (None, None, None)
        if len(standing.done) < 2:
            low = high = None
        reached = [
            {
                "threshold": reach.threshold,
                "seconds": _finite(reach.time),
                "env_steps": _finite(middle_time(reach.env_steps)),
                "runs": reach.count,
                "of": len(reach.seconds),
            }
            for reach in standing.reached
        ]
        recipes.append(
            {
                "recipe": standing.recipe,
                "done": len(standing.done),
                "return": {"iqm": value, "low": low, "high": high},
                "reached": reached,
                "env_steps_per_s": standing.rate,
                "by_seconds": _band(standing.by_time),
                "by_env_steps": _band(standing.by_steps),
            }
        )
    runs = [as_object(run, goals) for standing in found for run in standing.runs]
    known = {"env": plan.env, "budget": budget, "seeds": plan.seeds, "flags": list(plan.flags)}
    known |= {"variants": {name: list(words) for name, words in plan.own.items()}}
    said = {"machine": plan.machine, "thresholds": goals, "answer": answer(found), "notes": told}
    return known | said | {"recipes": recipes, "runs": runs}


def _band(band: CurveBand | None) -> dict[str, list[float]] | None:
    if band is None:
        return None
    return {name: getattr(band, name).tolist() for name in ("at", "middle", "low", "high")}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
