"""Train other libraries' algorithms with their default settings and record their learning curves.

`python benchmarks/peers/run.py sac --tasks BallInCupCatch-v1 --peers sbx sb3 --minutes 4 --run DIR` trains
every peer on every task, one run at a time, each in a virtual environment of its own, and prints a table. It
needs only Python's standard library. README.md describes files and measurement.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rates import FOLDER, Library, create_venv

SIMULATORS = ("envpool", "gymnasium[mujoco]")
PEERS = {
    "sb3": Library(
        "Stable-Baselines3", ("stable-baselines3", *SIMULATORS), "train.py", ("stable_baselines3",)
    ),
    "sbx": Library("SBX", ("sbx-rl", *SIMULATORS), "train.py", ("sbx",)),
}


@dataclass(frozen=True)
class PeerRun:
    """One training run and the file of its learning curve."""

    algorithm: str
    task: str
    peer: str
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        """The name in tables and paths, such as `sbx-sac`."""
        return f"{self.peer}-{self.algorithm}"

    @property
    def curve(self) -> Path:
        """`FOLDER/TASK/NAME/seedN/curve.json`, which exists if the run is finished."""
        return self.folder / self.task / self.name / f"seed{self.seed}" / "curve.json"

    def read(self) -> dict[str, Any] | None:
        """Return the finished curve; None without one."""
        if not self.curve.exists():
            return None
        data: dict[str, Any] = json.loads(self.curve.read_text())
        return data


def train(run: PeerRun, args: argparse.Namespace) -> int:
    """Train in a child process; return its exit code."""
    peer = PEERS[run.peer]
    command = [str(create_venv(run.peer, peer)), str(FOLDER / peer.script), *peer.arguments, run.algorithm]
    command += ["--name", run.name, "--task", run.task, "--seed", str(run.seed), "--out", str(run.curve)]
    budget = ["--minutes", f"{args.minutes:g}", "--evaluations", str(args.evaluations)]
    budget += ["--episodes", str(args.episodes)]
    shown = f"--tasks {run.task} --peers {run.peer} --seeds {run.seed} {' '.join(budget)}"
    shown = f"python benchmarks/peers/run.py {run.algorithm} {shown} --run DIR"
    return subprocess.run([*command, *budget, "--command", shown]).returncode


def check_budget(run: PeerRun, minutes: float) -> None:
    """End the program if a finished curve has another budget than --minutes."""
    data = run.read()
    if data is not None and data["minutes"] != minutes:
        raise SystemExit(
            f"--minutes is {minutes:g} but {run.curve} has {data['minutes']:g}; choose another --run."
        )


def table(runs: list[PeerRun]) -> str:
    """Return one line per run: return at the budget, best return, env steps and steps per second."""
    rows = [("task", "peer", "seed", "return", "best", "env steps", "steps/s")]
    for run in runs:
        data = run.read()
        if data is None:
            rows.append((run.task, run.name, str(run.seed), "-", "-", "-", "-"))
            continue
        seconds, steps, last = data["points"][-1]
        best = max(point[2] for point in data["points"])
        rate = f"{steps / seconds:.0f}"
        rows.append((run.task, run.name, str(run.seed), f"{last:.1f}", f"{best:.1f}", f"{steps:,}", rate))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the arguments; argparse ends the program if they are not valid."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("algorithm", choices=["sac"], help="algorithm of the peers")
    parser.add_argument(
        "--tasks", nargs="+", required=True, help="ids of DMC tasks (EnvPool) or of Gymnasium"
    )
    parser.add_argument("--peers", nargs="+", choices=sorted(PEERS), default=sorted(PEERS))
    parser.add_argument("--minutes", type=float, required=True, help="training time of a run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="seeds (default 1)")
    parser.add_argument("--evaluations", type=int, default=20, help="evaluations, evenly over the budget")
    parser.add_argument("--episodes", type=int, default=10, help="episodes of an evaluation")
    parser.add_argument(
        "--run", type=Path, required=True, help="folder of the curves; finished ones are kept"
    )
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Make all runs that are not finished and print the table; return 4 if a run failed."""
    args = parse(argv)
    runs = [
        PeerRun(args.algorithm, task, peer, seed, args.run.resolve())
        for seed in args.seeds
        for task in args.tasks
        for peer in args.peers
    ]
    for run in runs:
        check_budget(run, args.minutes)
    failed = False
    for number, run in enumerate(runs, 1):
        if run.read() is None:
            title = f"[{number}/{len(runs)}] {run.name} on {run.task}, seed {run.seed}"
            print(f"{title}: {args.minutes:g} minutes of training", flush=True)
            if code := train(run, args):
                print(f"{title}: failed with exit code {code}", flush=True)
                failed = True
    print(table(runs))
    return 4 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("Stopped; finished runs are kept. The same command continues.")
