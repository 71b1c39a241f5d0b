"""Write results.md, .csv, .json and .png, and print the table."""

from __future__ import annotations

import sys
from pathlib import Path

from troop.compare import table
from troop.compare.figure import draw
from troop.compare.machine import describe
from troop.compare.notes import notes
from troop.compare.plan import ComparisonPlan
from troop.compare.ranking import RecipeResult, answer, rank_recipes
from troop.compare.run_result import read_runs
from troop.core.errors import SetupProblem
from troop.runs import files

STEM = "results"


def write(plan: ComparisonPlan, folder: Path) -> tuple[list[RecipeResult], list[str]]:
    """Read every run and rewrite all result files; return the ranked recipes and the notes."""
    results = rank_recipes(plan, read_runs(plan, folder))
    texts = notes(plan, results)
    figure: str | None = f"{STEM}.png"
    try:
        draw(plan, results, folder / f"{STEM}.png")
    except SetupProblem as problem:
        figure, texts = None, [*texts, str(problem)]
    files.write_json(folder / f"{STEM}.json", table.as_json(plan, results, texts))
    pages = {"csv": table.as_csv(results), "md": table.as_markdown(plan, results, texts, figure)}
    for suffix, text in pages.items():
        path = folder / f"{STEM}.{suffix}"
        try:
            path.write_text(text)
        except OSError as error:
            raise files.disk_problem("write", path, error) from error
    return results, texts


def show(plan: ComparisonPlan, folder: Path, results: list[RecipeResult], texts: list[str]) -> None:
    """Print table, answer, machine and notes to standard output."""
    from rich.console import Console
    from rich.text import Text

    # Without a terminal rich assumes 80 columns and wraps the table.
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 140, soft_wrap=True)
    console.print()
    console.print(table.as_rich(plan, results))
    lines = [answer(results), f"Machine: {describe(plan.machine)}.", *(f"- {text}" for text in texts)]
    for line in [*lines, f"{folder / STEM}.md, .csv, .json, .png"]:
        console.print(Text(line))
