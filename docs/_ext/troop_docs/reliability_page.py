"""Reference page of faults and the tests that cause them, from the marks `reliability` of the tests.

`python docs/_ext/troop_docs/reliability_page.py` writes docs/reference/reliability.md.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from troop_docs.reliability_cases import Fault

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/reference/reliability.md"
MARK = "pytest.mark.reliability"
LONG = "pytest.mark.long"
INTRODUCTION = """\
# Reliability

Each line is a fault, what is expected then, and the tests that cause the fault. Tests are marked with
`@pytest.mark.reliability("K1")`. This page is generated from the marks (`make reliability`), and a test
checks that it is current. Tests in *italics* take minutes and run with `make test-long`.
"""


@dataclass(frozen=True)
class MarkedTest:
    """A test function with the ids of its marks."""

    file: str  # below tests/
    name: str
    ids: tuple[str, ...]
    long: bool  # whether it is skipped by default


def marked_tests() -> list[MarkedTest]:
    """Return all tests with a mark, read from the source without importing it."""
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        file = path.relative_to(ROOT / "tests").as_posix()
        tree = ast.parse(path.read_text())
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                ids = [name for decorator in node.decorator_list for name in _ids(decorator)]
                long = any(ast.unparse(decorator) == LONG for decorator in node.decorator_list)
                if ids:
                    found.append(MarkedTest(file, node.name, tuple(ids), long))
    return found


def _ids(decorator: ast.expr) -> list[str]:
    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == MARK:
        return [str(ast.literal_eval(argument)) for argument in decorator.args]
    return []


def page() -> str:
    """Return the page: one table for each group of faults, one line for each id."""
    from troop_docs.markdown import table
    from troop_docs.reliability_cases import FAULTS, GROUPS

    tests = marked_tests()
    unknown = sorted({name for test in tests for name in test.ids} - set(FAULTS))
    if unknown:
        raise ValueError(f"{unknown[0]} is not in troop_docs/reliability_cases.py")
    covered = {name for test in tests for name in test.ids}
    applicable = [name for name, fault in FAULTS.items() if not fault.not_applicable]
    tested = [name for name in applicable if name in covered]
    text = f"{INTRODUCTION}\n{len(FAULTS)} faults: {len(tested)} tested, "
    text += (
        f"{len(applicable) - len(tested)} not tested, {len(FAULTS) - len(applicable)} not applicable yet.\n"
    )
    for group, faults in GROUPS.items():
        rows = [
            [name, fault.fault, fault.expected, _cell([t for t in tests if name in t.ids], fault)]
            for name, fault in faults.items()
        ]
        text += f"\n## {group}\n\n{table(['id', 'fault', 'expected', 'tests'], rows)}"
    return text.rstrip() + "\n"


def _cell(tests: list[MarkedTest], fault: Fault) -> str:
    if fault.not_applicable:
        return f"not applicable: {fault.not_applicable}"
    by_file: dict[str, list[str]] = {}
    for test in tests:
        name = test.name.removeprefix("test_").replace("_", " ")
        by_file.setdefault(test.file, []).append(f"*{name}*" if test.long else name)
    parts = [f"`{file}`: {', '.join(names)}" for file, names in by_file.items()]
    if not parts:
        return "**not tested**" + (f": {fault.missing}" if fault.missing else "")
    return "; ".join(parts) + (f". Missing: {fault.missing}" if fault.missing else "")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "docs/_ext"))
    PAGE.write_text(page())
