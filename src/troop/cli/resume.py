"""troop resume DIR: continue a run from its newest valid checkpoint."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from troop.cli.parse import Parser, add_allow_flag
from troop.cli.train import report_result

if TYPE_CHECKING:
    from troop.core.engine import Result
    from troop.logs.console import Console

DESCRIPTION = """\
Continue a run in its directory from its newest valid checkpoint, with the settings in config.json.

Without --minutes or --env-steps the limits of the original command apply. Given limits are totals, counted
from the start of the run.
"""
EPILOG = """\
examples:
  troop resume runs/first                    finish a run that was stopped
  troop resume runs/first --minutes 20       train until 20 minutes in total
  troop resume runs/mine --allow my_package  a run whose env or algorithm is in my_package
"""


def run(argv: list[str]) -> int:
    """Resume; return 0 when the run is done, 3 when it was stopped again."""
    parser = Parser("resume", DESCRIPTION, EPILOG)
    parser.add_argument("run", type=Path, metavar="DIR", help="directory of the run")
    parser.add_argument(
        "--env", metavar="ID", help="env id as in `troop train`; the stored one keeps its settings"
    )
    add_allow_flag(parser)
    parser.add_argument(
        "--envs", type=int, metavar="N", help="another number of envs; reports the replay rows it drops"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="another number of data-parallel workers")
    parser.add_argument(
        "--minutes", type=float, metavar="M", help="stop after M minutes of training in total"
    )
    parser.add_argument("--env-steps", type=int, metavar="N", help="stop after N env steps in total")
    parser.add_argument(
        "--target", type=float, metavar="RETURN", help="stop when an evaluation reaches this mean return"
    )
    parser.add_argument("--device", help="cpu or cuda:N (default: that of the run)")
    args = parser.parse(argv)
    from troop.logs.console import Console

    console = Console()
    console.show_stage(str(args.run), "loading libraries")  # before torch, which takes seconds
    try:
        result = _resume(args, console)
    finally:
        console.discard()
    return report_result(result, args.run)


def _resume(args: Namespace, console: Console) -> Result:
    from troop.api import check_resources_allowed, extend_until, stored_experiment, with_workers
    from troop.runs.directory import RunDirectory

    with RunDirectory.open(args.run, lock=True) as directory:
        experiment = stored_experiment(directory, args.allow, args.env)
        check_resources_allowed(experiment, args.allow)
        if args.envs is not None:
            experiment = dataclasses.replace(experiment, env=experiment.env.with_envs(args.envs))
        if args.workers is not None:
            experiment = with_workers(experiment, args.workers)
        if args.device is not None:
            experiment = dataclasses.replace(experiment, device=args.device)
        until = extend_until(experiment.until, args.minutes, args.env_steps, args.target)
        experiment = dataclasses.replace(experiment, until=until)
        return experiment.resume(directory, console=console)
