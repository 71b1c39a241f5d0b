"""SuiteReport: write results.md, .csv, .json and .png of a suite, and print the tables."""

from __future__ import annotations

import sys
from pathlib import Path

from troop.compare import report as compare_report
from troop.compare.machine import describe
from troop.compare.session import Comparison
from troop.compare.table import rich_table
from troop.core.errors import SetupProblem
from troop.runs import files
from troop.suites import table
from troop.suites.figure import draw
from troop.suites.notes import notes
from troop.suites.pairs import time_ratios
from troop.suites.plan import SuitePlan
from troop.suites.results import SuiteResult, TaskResult, aggregate, read_task

STEM = compare_report.STEM


class SuiteReport:
    """The report of all tasks of a directory, for a Session that may run only some of them."""

    def __init__(self, suite: SuitePlan, folder: Path) -> None:
        self.suite, self.folder = suite, folder
        self.command = f"troop suite --run {folder}"
        self.tasks: dict[str, TaskResult] = {}

    def write(self, comparison: Comparison) -> None:
        """Rewrite the result files of the suite and of the task that just had a run."""
        compare_report.write(self._read(comparison).plan, comparison.folder)
        self._write_suite()

    def show(self) -> None:
        """Read every task again, rewrite the result files of the suite and print the tables."""
        for comparison in self.suite.comparisons(self.folder):
            self._read(comparison)
        tasks, results, texts = self._write_suite()
        _print(self.suite, self.folder, tasks, results, texts)

    def _read(self, comparison: Comparison) -> TaskResult:
        task = read_task(comparison)
        self.tasks[task.env] = task
        return task

    def _write_suite(self) -> tuple[list[TaskResult], list[SuiteResult], list[str]]:
        for comparison in self.suite.comparisons(self.folder):
            if comparison.plan.env not in self.tasks:
                self._read(comparison)
        tasks = [self.tasks[env] for env in self.suite.tasks]
        results = aggregate(tasks)
        texts = notes(self.suite, tasks, results)
        figure: str | None = f"{STEM}.png"
        try:
            draw(table.title(self.suite, tasks), tasks, results, self.folder / f"{STEM}.png")
        except SetupProblem as problem:
            figure, texts = None, [*texts, str(problem)]
        files.write_json(self.folder / f"{STEM}.json", table.as_json(self.suite, tasks, results, texts))
        files.write_text(self.folder / f"{STEM}.csv", table.as_csv(tasks))
        page = table.as_markdown(self.suite, tasks, results, texts, figure)
        files.write_text(self.folder / f"{STEM}.md", page)
        return tasks, results, texts


def _print(
    suite: SuitePlan, folder: Path, tasks: list[TaskResult], results: list[SuiteResult], texts: list[str]
) -> None:
    from rich.console import Console
    from rich.text import Text

    # Without a terminal rich assumes 80 columns and wraps the table.
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160, soft_wrap=True)
    console.print()
    console.print(rich_table(table.task_cells(tasks), "Tasks", 2))
    console.print(rich_table(table.suite_cells(results, tasks), table.title(suite, tasks)))
    if ratios := time_ratios(tasks):
        console.print(rich_table(table.ratio_cells(ratios), "External programs", 2))
    lines = [table.answer(results), f"Machine: {describe(tasks[0].plan.machine)}."]
    for line in [*lines, *(f"- {text}" for text in texts), f"{folder / STEM}.md, .csv, .json, .png"]:
        console.print(Text(line))
