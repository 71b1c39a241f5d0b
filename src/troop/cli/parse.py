"""Command-line parsing: argparse for the flags of a verb, tyro for settings, every error as one sentence."""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from troop.core.config import suggest
from troop.core.errors import BadInput


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises BadInput instead of printing its usage and exiting."""

    def __init__(self, verb: str, description: str, epilog: str | None = None) -> None:
        super().__init__(
            prog=f"troop {verb}",
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Raise BadInput with the message as a sentence."""
        raise BadInput(f"{message[0].upper()}{message[1:]}; see `{self.prog} --help`.")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse all of `argv`; the BadInput for an unknown flag suggests the most similar one."""
        args, rest = self.parse_known_args(argv)
        if not rest:
            return args
        name = rest[0].split("=")[0]
        if not name.startswith("-"):
            raise BadInput(f"Unexpected argument {name!r}; see `{self.prog} --help`.")
        known = [flag for action in self._actions for flag in action.option_strings]
        similar = suggest(name.replace("_", "-"), known, 1)
        hint = f"did you mean {similar[0]}?" if similar else f"see `{self.prog} --help`."
        raise BadInput(f"Unknown flag {name}; {hint}")


def add_allow_flag(parser: Parser) -> None:
    """Add --allow, which may be repeated and takes a comma-separated list."""
    parser.add_argument(
        "--allow",
        action="extend",
        type=lambda text: [name for name in text.split(",") if name],
        default=[],
        metavar="MODULE",
        help="module, file or package:name outside Troop that the files in DIR may import",
    )


def parse_config(kind: type, default: Any, argv: list[str], prog: str, description: str) -> Any:  # noqa: ANN401
    """Return `default` with the changes in `argv`; errors of tyro become a BadInput of one sentence."""
    import tyro

    errors = io.StringIO()
    wants_help = any(flag in ("-h", "--help") for flag in argv)
    try:
        with contextlib.nullcontext() if wants_help else contextlib.redirect_stderr(errors):
            return tyro.cli(kind, args=argv, default=default, prog=prog, description=description)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise BadInput(_one_line(errors.getvalue())) from None


def _one_line(box: str) -> str:
    """The sentence in the first section of the framed error that tyro prints."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines()[1:]  # the first line is the upper edge
    lines = [line.strip("╭╮╰╯│─ ") for line in lines]
    sentence = " ".join(itertools.takewhile(bool, lines))[:400]
    return f"{sentence.rstrip('.')}." if sentence else "The flags could not be parsed."


def value_after(flag: str, argv: list[str]) -> tuple[str | None, list[str]]:
    """The value of the last `--flag value` or `--flag=value`, and `argv` without these words."""
    value, rest, index = None, [], 0
    while index < len(argv):
        word = argv[index]
        if word == flag:
            if index + 1 >= len(argv) or argv[index + 1].startswith("--"):
                raise BadInput(f"{flag} needs a value.")
            value, index = argv[index + 1], index + 2
            if not value:
                raise BadInput(f"{flag} is empty; give a value.")
        elif word.startswith(f"{flag}="):
            value, index = word[len(flag) + 1 :], index + 1
        else:
            rest.append(word)
            index += 1
    return value, rest


def echo(text: str) -> None:
    """Print a line for the user at once."""
    print(text, file=sys.stdout, flush=True)
