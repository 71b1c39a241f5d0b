"""troop eval DIR: how good the newest policy is."""

from __future__ import annotations

import json
from pathlib import Path

from troop.cli.parse import Parser, say
from troop.core.errors import BadInput


def run(argv: list[str]) -> int:
    """Evaluate and print."""
    parser = Parser("eval", "Evaluate the newest policy of a run: no exploration, first episode of each env.")
    parser.add_argument("run", type=Path, metavar="DIR", help="the run's directory")
    parser.add_argument("--episodes", type=int, default=16, help="how many, one per env (default 16)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the envs (default 0)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:N")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse(argv)
    if args.episodes < 1:
        raise BadInput(f"--episodes is {args.episodes}; it must be at least 1.")
    if args.seed < 0:
        raise BadInput(f"--seed is {args.seed}; it must be at least 0.")
    from troop.api import evaluate

    found = evaluate(args.run, args.episodes, args.seed, args.device)
    if args.json:
        say(json.dumps(found))
        return 0
    say(
        f"return {found['return_mean']:.2f} ± {found['return_std']:.2f} "
        f"(min {found['return_min']:.2f}, max {found['return_max']:.2f}) over {found['episodes']} episodes "
        f"of {found['length_mean']:.0f} steps"
    )
    if "human_normalized" in found:
        say(f"{found['human_normalized']:.1f}% of a human player (0% is random play)")
    if found["unfinished"]:
        say(f"{found['unfinished']} episodes had no end within the limit and are taken as they stood.")
    return 0
