"""One run of a comparison in a process of its own: `python -m troop.compare.child DIR RECIPE SEED`."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
from pathlib import Path

from troop.compare.plan import Plan, run_path
from troop.core.errors import TroopError
from troop.runs.directory import CONFIG, RunDirectory


def run(folder: Path, recipe: str, seed: int) -> int:
    """Train, or go on where it stopped; the exit code of `troop train`."""
    from troop.experiment import Experiment

    made = Experiment.from_dict(Plan.read(folder).recipes[recipe])
    made = dataclasses.replace(made, seed=seed)
    path = run_path(folder, recipe, seed)
    if (path / CONFIG).exists():
        with RunDirectory.open(path, lock=True) as directory:
            result = made.resume(directory)
    else:
        result = made.run(path)
    return 0 if result.status == "done" else 3


def follow_parent() -> None:
    """Stop as if by Ctrl-C when standard input closes: the parent has ended, or asks for it."""
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # shells start what is in the background deaf to it
    lifeline = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def wait() -> None:
        os.read(lifeline, 1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()


def main() -> int:
    """Run what the command line names."""
    folder, recipe, seed = sys.argv[1:]
    try:
        follow_parent()
        return run(Path(folder), recipe, int(seed))
    except TroopError as error:
        print(f"troop: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:  # before the run listens itself
        return 3


if __name__ == "__main__":
    sys.exit(main())
