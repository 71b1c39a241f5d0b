"""troop bench WHAT: ours and the limit in one run."""

from __future__ import annotations

import dataclasses
import json

from troop.cli.parse import Parser, say
from troop.core.errors import BadInput


def run(argv: list[str]) -> int:
    """Measure and print a table."""
    parser = Parser(
        "bench", "Measure Troop and the limit of this machine in one run; the ratio is the result."
    )
    parser.add_argument("what", choices=["learner", "replay", "loop", "actor", "all"], help="what to measure")
    parser.add_argument("--threads", type=int, default=0, help="torch threads (default: all cores)")
    parser.add_argument(
        "--env", default="HalfCheetah-v5", help="the env of the loop (default HalfCheetah-v5)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    args = parser.parse(argv)
    if args.threads < 0:
        raise BadInput(f"--threads is {args.threads}; it must be at least 0.")
    from troop.bench import learner, loop, pixels, prioritized, replay
    from troop.bench.table import table

    lines = []
    if args.what in ("learner", "all"):
        lines += learner.run(args.threads) + pixels.learner(args.threads)
    if args.what in ("replay", "all"):
        lines += replay.run(args.threads) + prioritized.run(args.threads)
    if args.what in ("actor", "all"):
        lines += pixels.actor()
    if args.what in ("loop", "all"):
        lines += loop.run(args.env)
    for line in lines if args.json else []:
        say(json.dumps(dataclasses.asdict(line)))
    if not args.json:
        say(table(lines))
    return 0
