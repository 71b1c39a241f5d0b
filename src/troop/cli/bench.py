"""troop bench WHAT: ours and the limit in one run."""

from __future__ import annotations

import dataclasses
import json
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from troop.cli.parse import Parser, say
from troop.core.config import suggest
from troop.core.errors import BadInput

if TYPE_CHECKING:
    from troop.bench.table import Line

ENGINES = ("processes", "ray")


def run(argv: list[str]) -> int:
    """Measure and print a table, of `system` one for each part."""
    args = _parser().parse(argv)
    if args.threads < 0:
        raise BadInput(f"--threads is {args.threads}; it must be at least 0.")
    if args.parts and args.what != "system":
        raise BadInput(f"Unexpected argument {args.parts[0]!r}; only `troop bench system` has parts.")
    from troop.bench.table import table

    for lines in _system(args) if args.what == "system" else [_measured(args)]:
        for line in lines if args.json else []:
            say(json.dumps(dataclasses.asdict(line)))
        if not args.json:
            say(table(lines))
    return 0


def _parser() -> Parser:
    parser = Parser(
        "bench", "Measure Troop and the limit of this machine in one run; the ratio is the result."
    )
    parser.add_argument(
        "what", choices=["learner", "replay", "loop", "actor", "system", "all"], help="what to measure"
    )
    parser.add_argument(
        "parts",
        nargs="*",
        help="of system: transport, apex, scaling, ray, start (all of these by default), pql, learning",
    )
    parser.add_argument("--threads", type=int, default=0, help="torch threads (default: all cores)")
    parser.add_argument("--env", help="the env of loop (default HalfCheetah-v5), apex and ray (Pong-v5)")
    parser.add_argument("--seconds", type=float, help="of each measurement of a part of system")
    parser.add_argument(
        "--engines", nargs="+", default=list(ENGINES), choices=ENGINES, help="of scaling, start and pql"
    )
    parser.add_argument("--seeds", type=int, default=3, help="of learning (default 3)")
    parser.add_argument("--figure", type=Path, default=Path("scaling.png"), help="what learning draws")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    return parser


def _measured(args: Namespace) -> list[Line]:
    from troop.bench import learner, loop, pixels, prioritized, replay

    lines: list[Line] = []
    if args.what in ("learner", "all"):
        lines += learner.run(args.threads) + pixels.learner(args.threads)
    if args.what in ("replay", "all"):
        lines += replay.run(args.threads) + prioritized.run(args.threads)
    if args.what in ("actor", "all"):
        lines += pixels.actor()
    if args.what in ("loop", "all"):
        lines += loop.run(args.env or "HalfCheetah-v5")
    return lines


def _system(args: Namespace) -> Iterator[list[Line]]:
    from troop.bench.system.parts import PARTS, USUAL, BenchArgs

    for name in args.parts:
        if name not in PARTS:
            near = suggest(name, PARTS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(PARTS)}."
            raise BadInput(f"`troop bench system` has no part {name!r}; {hint}")
    wish = BenchArgs(args.seconds, args.env, tuple(args.engines), args.seeds, args.figure)
    wish.check()
    for name in args.parts or USUAL:
        yield PARTS[name](wish)
