"""Sphinx extension: replaces `<!-- generated: NAME -->` in pages by tables made from the code."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.M)
PAGES = {"recipes", "flags", "commands", "metrics", "files", "exit_codes", "suites"}


def generate(name: str) -> str:
    """Return the Markdown of a generated page; KeyError for an unknown name."""
    if name not in PAGES:
        raise KeyError(name)
    text: str = importlib.import_module(f"troop_docs.{name}_page").page()
    return text


def expand(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace the marks of one page."""
    source[0] = MARK.sub(lambda match: generate(match[1]), source[0])


def outdated(app: Sphinx, env: BuildEnvironment, *changes: Any) -> list[str]:  # noqa: ANN401
    """Return pages that depend on the code and are therefore always rebuilt."""
    return [name for name in env.found_docs if name.startswith("reference/")]


def plain_docstring(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Turn a docstring in plain English with `code` marks into reStructuredText."""
    lines[:] = [_line(line) for line in lines]


def _line(line: str) -> str:
    parts = line.split("`")
    if len(parts) % 2 == 0:  # an unpaired mark: treat it as text
        parts = [line.replace("`", "'")]
    plain = [re.sub(r"([*|\\])|(?<=\w)(_)(?=\W|$)", lambda m: "\\" + m[0], part) for part in parts[::2]]
    # An escaped space separates a literal from a letter next to it and is not shown.
    marked = [f"\\ ``{part.strip()}``\\ " if part.strip() else "" for part in parts[1::2]]
    woven = [text for pair in zip(plain, [*marked, ""], strict=True) for text in pair]
    return "".join(woven)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the hooks."""
    app.connect("source-read", expand)
    app.connect("env-get-outdated", outdated)
    app.connect("autodoc-process-docstring", plain_docstring)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
