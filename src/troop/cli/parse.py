"""Flags: plain ones by argparse, config fields by tyro, every complaint in one line."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from troop.core.config import suggest
from troop.core.errors import BadInput


class Parser(argparse.ArgumentParser):
    """argparse that raises BadInput instead of printing its usage."""

    def __init__(self, verb: str, about: str) -> None:
        super().__init__(prog=f"troop {verb}", description=about, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """One sentence."""
        raise BadInput(f"{message[0].upper()}{message[1:]}; see `{self.prog} --help`.")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """All of argv; an unknown flag gets the nearest one."""
        known, rest = self.parse_known_args(argv)
        if rest:
            raise unknown(rest[0], self.flags(), self.prog)
        return known

    def flags(self) -> list[str]:
        """Every flag it knows."""
        return [flag for action in self._actions for flag in action.option_strings]


def unknown(flag: str, known: Sequence[str], prog: str) -> BadInput:
    """The complaint about a flag that does not exist."""
    name = flag.split("=")[0]
    if not name.startswith("-"):
        return BadInput(f"Unexpected argument {name!r}; see `{prog} --help`.")
    plain = name.replace("_", "-")
    # A last part that is right under another heading is what was meant: --gamma for --algorithm.gamma.
    same = [k for k in known if k.rsplit(".", 1)[-1] == plain.lstrip("-").rsplit(".", 1)[-1]]
    near = same or suggest(plain, known, 1)
    hint = f"; did you mean {near[0]}?" if near else f"; see `{prog} --help`."
    return BadInput(f"Unknown flag {name}{hint}")


def configured(kind: type, default: Any, argv: list[str], prog: str, about: str) -> Any:  # noqa: ANN401
    """`default` changed by dotted flags; what tyro has to complain about becomes one line."""
    import tyro

    said = io.StringIO()
    wants_help = any(flag in ("-h", "--help") for flag in argv)
    try:
        with contextlib.nullcontext() if wants_help else contextlib.redirect_stderr(said):
            return tyro.cli(
                kind,
                args=argv,
                default=default,
                prog=prog,
                description=about,
                config=(tyro.conf.OmitSubcommandPrefixes,),
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise BadInput(_one_line(said.getvalue())) from None


def _one_line(box: str) -> str:
    """Tyro's framed complaint without its frame."""
    words = re.sub(r"\x1b\[[0-9;]*m", "", box)
    words = re.sub(r"[╭╮╰╯│─]+", " ", words)
    words = re.sub(r"\s+", " ", words).strip()
    words = re.sub(r"^(Parsing|Value) error ", "", words)
    words = re.split(r" (?:Argument helptext|For full helptext)", words)[0].strip()
    return words[:400] if words else "the flags could not be understood."


def value_after(flag: str, argv: list[str]) -> tuple[str | None, list[str]]:
    """The value of the last `--flag value` or `--flag=value`, and argv without them."""
    found, rest, position = None, [], 0
    while position < len(argv):
        word = argv[position]
        if word == flag:
            if position + 1 >= len(argv) or argv[position + 1].startswith("--"):
                raise BadInput(f"{flag} needs a value.")
            found, position = argv[position + 1], position + 2
            if not found:
                raise BadInput(f"{flag} is empty; give a value.")
        elif word.startswith(f"{flag}="):
            found, position = word[len(flag) + 1 :], position + 1
        else:
            rest.append(word)
            position += 1
    return found, rest


def say(text: str) -> None:
    """A line for the user."""
    print(text, file=sys.stdout, flush=True)
