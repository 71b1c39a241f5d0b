"""Flags that `troop compare` and `troop suite` share: budget and seeds of each run."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping

from troop.cli.parse import Parser
from troop.core.errors import BadInput


def add_budget_flags(parser: Parser) -> None:
    """Add --minutes, --env-steps and --seeds."""
    parser.add_argument("--minutes", type=float, metavar="M", help="training time of each run")
    parser.add_argument("--env-steps", type=int, metavar="N", help="or: env steps of each run")
    parser.add_argument("--seeds", type=int, metavar="N", help="train seeds 1 to N (default 3)")


def check_budget_flags(args: argparse.Namespace) -> None:
    """Raise BadInput for two budgets, or a budget or number of seeds out of range."""
    if args.minutes is not None and args.env_steps is not None:
        raise BadInput("--minutes and --env-steps are both given; all runs have one budget, leave one out.")
    if args.minutes is not None and not (args.minutes > 0 and math.isfinite(args.minutes)):
        raise BadInput(f"--minutes is {args.minutes:g}; it must be above 0.")
    if args.env_steps is not None and args.env_steps < 1:
        raise BadInput(f"--env-steps is {args.env_steps}; it must be at least 1.")
    if args.seeds is not None and args.seeds < 1:
        raise BadInput(f"--seeds is {args.seeds}; it must be at least 1.")


def parse_known_flags(
    parser: Parser, argv: list[str], replacements: Mapping[str, str]
) -> tuple[list[str], argparse.Namespace, list[str]]:
    """Return the words before the first flag, the parsed flags, and the words that the parser does not know.

    `replacements` names what to use instead of a flag of `troop train`; such a flag raises BadInput.
    """
    argv = [_with_dashes(word) for word in argv]
    first_flag = next((index for index, word in enumerate(argv) if word.startswith("-")), len(argv))
    args, rest = parser.parse_known_args(argv[first_flag:])
    for word in rest:
        if (name := word.split("=")[0]) in replacements:
            raise BadInput(f"`{parser.prog}` has no {name}; use {replacements[name]}.")
    return argv[:first_flag], args, rest


def _with_dashes(word: str) -> str:
    """Replace underscores in the name of a flag by dashes."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else word
