"""Results on the disk and on the screen: results.md, .csv, .json, .png."""

from __future__ import annotations

import sys
from pathlib import Path

from troop.compare import table
from troop.compare.figure import draw
from troop.compare.machine import described
from troop.compare.notes import notes
from troop.compare.plan import Plan
from troop.compare.ranking import RecipeResult, answer, standings
from troop.compare.run_result import gather
from troop.core.errors import SetupProblem
from troop.runs import files

STEM = "results"


def write(plan: Plan, folder: Path) -> tuple[list[RecipeResult], list[str]]:
    """Read every run and write all results anew; what was found, and what is to be noted."""
    found = standings(plan, gather(plan, folder))
    told = notes(plan, found)
    figure: str | None = f"{STEM}.png"
    try:
        draw(plan, found, folder / f"{STEM}.png")
    except SetupProblem as problem:
        figure, told = None, [*told, str(problem)]
    files.write_json(folder / f"{STEM}.json", table.as_json(plan, found, told))
    pages = {"csv": table.as_csv(found), "md": table.markdown(plan, found, told, figure)}
    for suffix, text in pages.items():
        path = folder / f"{STEM}.{suffix}"
        try:
            path.write_text(text)
        except OSError as error:
            raise files.disk_problem("write", path, error) from error
    return found, told


def show(plan: Plan, folder: Path, found: list[RecipeResult], told: list[str]) -> None:
    """Table, answer and notes for a person."""
    from rich.console import Console
    from rich.text import Text

    # Without a terminal rich takes 80 columns and breaks the table.
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 140, soft_wrap=True)
    console.print()
    console.print(table.rich_table(plan, found))
    lines = [answer(found), f"Machine: {described(plan.machine)}.", *(f"- {text}" for text in told)]
    for line in [*lines, f"{folder / STEM}.md, .csv, .json, .png"]:
        console.print(Text(line))
