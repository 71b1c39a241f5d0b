"""What a benchmark found: ours, the limit, and the ratio of the two."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """One measurement inside one run; the ratio is what is claimed, the rates are of this machine."""

    what: str
    ours: str
    limit: str
    ratio: float
    wanted: str = ""


def table(lines: list[Line]) -> str:
    """Columns of plain text."""
    rows = [("", "ours", "against", "ratio", "wanted")]
    rows += [(line.what, line.ours, line.limit, f"{line.ratio:.2f}", line.wanted) for line in lines]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    )
