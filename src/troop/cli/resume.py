"""troop resume DIR: go on from the newest valid checkpoint."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from troop.cli.parse import Parser
from troop.cli.train import finished


def run(argv: list[str]) -> int:
    """Resume; 0 when done, 3 when stopped again."""
    parser = Parser("resume", "Go on with a run from its newest valid checkpoint, in the same directory.")
    parser.add_argument("run", type=Path, metavar="DIR", help="the run's directory")
    parser.add_argument("--envs", type=int, help="another number of envs (says what is dropped)")
    parser.add_argument("--minutes", type=float, help="train until this many minutes in all")
    parser.add_argument("--env-steps", type=int, help="train until this many env steps in all")
    parser.add_argument("--target", type=float, help="stop when an evaluation reaches this return")
    parser.add_argument("--device", help="cpu or cuda:N")
    args = parser.parse(argv)
    from troop.api import extend_until
    from troop.experiment import Experiment
    from troop.runs.directory import RunDirectory

    with RunDirectory.open(args.run, lock=True) as directory:
        made = Experiment.from_dict(directory.read_config())
        if args.envs is not None:
            made = dataclasses.replace(made, env=made.env.with_envs(args.envs))
        if args.device is not None:
            made = dataclasses.replace(made, device=args.device)
        end = extend_until(made.until, args.minutes, args.env_steps, args.target)
        made = dataclasses.replace(made, until=end)
        return finished(made.resume(directory), args.run)
