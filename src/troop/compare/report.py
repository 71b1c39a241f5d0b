"""Write results.md, .csv, .json and .png, and print the table."""

from __future__ import annotations

import sys
from pathlib import Path

from troop.compare import table
from troop.compare.external import read_external
from troop.compare.figure import draw
from troop.compare.machine import describe
from troop.compare.notes import notes
from troop.compare.plan import ComparisonPlan
from troop.compare.ranking import RecipeResult, answer, rank_recipes
from troop.compare.run_result import read_runs
from troop.compare.session import Comparison
from troop.core.errors import SetupProblem
from troop.runs import files

STEM = "results"


class ComparisonReport:
    """The report of one comparison, for a Session."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self.command = f"troop compare --run {comparison.folder}"

    def write(self, comparison: Comparison) -> None:
        """Rewrite all result files."""
        write(comparison.plan, comparison.folder)

    def show(self) -> None:
        """Rewrite all result files and print the results."""
        plan, folder = self.comparison.plan, self.comparison.folder
        show(plan, folder, *write(plan, folder))


def write(plan: ComparisonPlan, folder: Path) -> tuple[list[RecipeResult], list[str]]:
    """Read every run and rewrite all result files; return the ranked recipes and the notes."""
    results = rank_recipes(plan, [*read_runs(plan, folder), *read_external(plan, folder)])
    texts = notes(plan, results)
    figure: str | None = f"{STEM}.png"
    try:
        draw(plan, results, folder / f"{STEM}.png")
    except SetupProblem as problem:
        figure, texts = None, [*texts, str(problem)]
    files.write_json(folder / f"{STEM}.json", table.as_json(plan, results, texts))
    files.write_text(folder / f"{STEM}.csv", table.as_csv(results))
    files.write_text(folder / f"{STEM}.md", table.as_markdown(plan, results, texts, figure))
    return results, texts


def show(plan: ComparisonPlan, folder: Path, results: list[RecipeResult], texts: list[str]) -> None:
    """Print table, answer, machine and notes to standard output."""
    from rich.console import Console
    from rich.text import Text

    # Without a terminal rich assumes 80 columns and wraps the table.
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 140, soft_wrap=True)
    console.print()
    console.print(table.rich_table(table.cells(results), plan.title))
    lines = [answer(results), f"Machine: {describe(plan.machine)}.", *(f"- {text}" for text in texts)]
    for line in [*lines, f"{folder / STEM}.md, .csv, .json, .png"]:
        console.print(Text(line))
