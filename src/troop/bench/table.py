"""BenchResult: a measured value, the limit it is compared with, and their ratio; printed as a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BenchResult:
    """One measurement; only the ratio is comparable between machines.

    `limit` is a value of this machine measured in the same run, or a fixed number; `target` is the range the
    ratio should be in, empty if there is none.
    """

    name: str
    measured: str
    limit: str
    ratio: float
    target: str = ""


def format_table(results: list[BenchResult]) -> str:
    """Format the results as aligned columns of plain text."""
    rows = [("benchmark", "measured", "limit", "ratio", "target")]
    rows += [(r.name, r.measured, r.limit, f"{r.ratio:.2f}", r.target) for r in results]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    )
