"""Reference page of suites: tasks with random and reference returns, and the sources."""

from __future__ import annotations

from troop.suites.registry import SUITES, find_suite
from troop_docs.markdown import code, table


def page() -> str:
    """Return one section for each suite."""
    return "\n".join(_section(name, about) for name, about in SUITES.items())


def _section(name: str, about: str) -> str:
    suite = find_suite(name)
    rows = [
        [
            code(task.env),
            f"{task.random:g}",
            "-" if task.reference is None else f"{task.reference:g}",
            task.source,
        ]
        for task in suite.tasks
    ]
    used = {task.source: suite.sources[task.source] for task in suite.tasks}
    sources = "\n".join(f"- {key}: {citation}." for key, citation in used.items())
    lines = [f"## {name}\n", f"{about[0].upper()}{about[1:]}. {suite.remark}".strip() + "\n"]
    return "\n".join([*lines, table(["task", "random", "reference", "source"], rows), f"{sources}\n"])
