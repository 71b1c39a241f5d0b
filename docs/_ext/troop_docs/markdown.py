"""Markdown fragments: tables, inline code, values as they are typed on the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a pipe table; pipes and line breaks inside cells are escaped."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Return inline code; empty text stays empty."""
    return f"`{text}`" if text else ""


def value(x: object) -> str:
    """Return a setting's value as a user would type it."""
    if isinstance(x, bool):
        return "on" if x else "off"
    if x is None:
        return "-"
    if isinstance(x, float):
        return f"{x:g}"
    if isinstance(x, int):
        return f"{x:,}" if abs(x) >= 10_000 else str(x)
    if dataclasses.is_dataclass(x):
        return type(x).__name__
    if isinstance(x, tuple | list):
        return " ".join(value(item) for item in x) if x else "()"
    return str(x) if x != "" else '""'
