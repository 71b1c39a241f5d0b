"""Reference page of metrics: the table of `troop.logs.metric_names`."""

from __future__ import annotations

from troop.logs.metric_names import GROUPS, MetricName
from troop_docs.markdown import code, table


def page() -> str:
    """Return one table for each group of metrics."""
    lines = []
    for title, metrics in GROUPS.items():
        rows = [[code(m.pattern), m.unit, m.meaning, _when(m)] for m in metrics]
        lines += [f"## {title}\n", table(["metric", "unit", "meaning", "written by"], rows)]
    return "\n".join(lines)


def _when(metric: MetricName) -> str:
    systems = ", ".join(metric.systems) or "all systems"
    return f"{systems}: {metric.condition}" if metric.condition else systems
