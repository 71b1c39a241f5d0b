"""troop eval DIR: the return of a trained policy."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from troop.cli.parse import Parser, add_allow_flag, echo
from troop.core.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

DESCRIPTION = """\
Evaluate the policy of the newest checkpoint of a run. If it is damaged, an older one needs --allow-older.

Each of N envs plays one episode, and their returns are printed as mean, standard deviation, minimum and
maximum. The env, the limit of steps and the exploration (none by default) are those of the evaluations during
training. The same seed gives the same result.
"""
EPILOG = """\
examples:
  troop eval runs/first                             16 episodes
  troop eval runs/first --episodes 100 --json       as JSON, for scripts
  troop eval runs/pong --explore 0.05               with the epsilon of the DQN paper
  troop eval runs/mine --allow my_package           a run whose env or algorithm is in my_package
"""


def run(argv: list[str]) -> int:
    """Evaluate the policy and print its returns."""
    parser = Parser("eval", DESCRIPTION, EPILOG)
    parser.add_argument("run", type=Path, metavar="DIR", help="directory of the run")
    parser.add_argument(
        "--env", metavar="ID", help="env id as in `troop train`; the stored one keeps its settings"
    )
    add_allow_flag(parser)
    parser.add_argument(
        "--episodes", type=int, default=16, metavar="N", help="number of episodes (default 16)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the envs (default 0)")
    parser.add_argument(
        "--explore",
        type=float,
        metavar="X",
        help="exploration value, such as an epsilon (default: --evaluation.explore of the run)",
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda:N (default cpu)")
    parser.add_argument(
        "--allow-older", action="store_true", help="use an older checkpoint if the newest is damaged"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse(argv)
    if args.episodes < 1:
        raise BadInput(f"--episodes is {args.episodes}; it must be at least 1.")
    if args.seed < 0:
        raise BadInput(f"--seed is {args.seed}; it must be at least 0.")
    if args.explore is not None and not 0 <= args.explore <= 1e6:
        raise BadInput(f"--explore is {args.explore:g}; it must be at least 0 and at most 1e+06.")
    from troop.logs.status_line import StatusLine

    with StatusLine("loading libraries") as status:
        from troop.api import evaluate_policy, load_policy

        def show(step: int, running: Tensor) -> None:
            ended = args.episodes - int(running.sum())
            status.update(f"step {step:,}: {ended} of {args.episodes} episodes have ended")

        policy = load_policy(args.run, args.device, args.env, args.allow, allow_older=args.allow_older)
        status.print(f"checkpoint {policy.checkpoint}", sys.stderr if args.json else sys.stdout)
        result = evaluate_policy(policy, args.episodes, args.seed, args.device, args.explore, show)
    if args.json:
        echo(json.dumps(result))
        return 0
    echo(
        f"return {result['return_mean']:.2f} ± {result['return_std']:.2f} "
        f"(min {result['return_min']:.2f}, max {result['return_max']:.2f}) "
        f"over {result['episodes']} episodes of {result['length_mean']:.0f} steps"
    )
    if "human_normalized" in result:
        echo(f"{result['human_normalized']:.1f}% of a human player (0% is random play)")
    if result["unfinished"]:
        echo(
            f"{result['unfinished']} episodes did not end within the step limit; their returns so far count."
        )
    return 0
