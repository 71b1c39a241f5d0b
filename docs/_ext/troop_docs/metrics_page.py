"""Reference page of metrics: the table of `troop.logs.metric_names`."""

from __future__ import annotations

from troop_docs.markdown import code, table

from troop.logs.metric_names import GROUPS


def page() -> str:
    """Return one table for each group of metrics."""
    lines = []
    for title, metrics in GROUPS.items():
        rows = [[code(m.pattern), m.unit, m.meaning, ", ".join(m.systems) or "all"] for m in metrics]
        lines += [f"## {title}\n", table(["metric", "unit", "meaning", "systems"], rows)]
    return "\n".join(lines)
