"""Reference page of commands: verbs of `troop` with their arguments, read from their parsers."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import re
from collections.abc import Iterator
from typing import Any

from troop.cli.main import VERBS
from troop_docs.markdown import code, table, value


class Captured(Exception):
    """Carries the parser of a verb out of its `run`."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def page() -> str:
    """Return one section for each verb."""
    return "\n".join(_section(verb, about) for verb, about in VERBS.items())


def _section(verb: str, about: str) -> str:
    lines = [f"## troop {verb}\n", f"{about[0].upper()}{about[1:]}.\n"]
    if verb == "train":
        from troop_docs.train_flags import rows

        lines.append(table(["argument", "default", "meaning"], rows()))
        lines.append("Every setting of the recipe is a flag as well: see [Flags](flags.md).\n")
        return "\n".join(lines)
    if actions := _actions(parser_of(verb)):
        lines.append(table(["argument", "default", "meaning"], [_row(action) for action in actions]))
    return "\n".join(lines)


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]


def _row(action: argparse.Action) -> list[str]:
    name = " ".join(action.option_strings) or str(action.metavar or action.dest).upper()
    given = action.default not in (None, False, "", argparse.SUPPRESS) and not isinstance(
        action.default, list
    )
    text, default = split_default((action.help or "").replace("%%", "%"))
    choices = f"; one of {', '.join(map(code, map(str, action.choices)))}" if action.choices else ""
    return [code(name), default or (code(value(action.default)) if given else ""), f"{text}{choices}"]


def split_default(text: str) -> tuple[str, str]:
    """Split a help text into the text without `(default X)` at its end, and X as inline code."""
    match = re.search(r" \((?:default:? )([^()]+)\)$", text)
    if match is None:
        return text, ""
    return text[: match.start()], code(match[1].strip("`"))


def parser_of(verb: str) -> argparse.ArgumentParser:
    """Return the argument parser of a verb without running it."""
    module = importlib.import_module(f"troop.cli.{verb}")
    with _capturing():
        try:
            module.run(["--help-me"])
        except Captured as captured:
            return captured.parser
    raise LookupError(f"troop {verb} has no argparse parser")


@contextlib.contextmanager
def _capturing() -> Iterator[None]:
    original = argparse.ArgumentParser.parse_known_args

    def capture(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        raise Captured(self)

    argparse.ArgumentParser.parse_known_args = capture  # type: ignore[assignment]
    try:
        yield
    finally:
        argparse.ArgumentParser.parse_known_args = original  # type: ignore[method-assign]
