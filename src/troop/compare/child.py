"""Train one run of a comparison in a process: `python -m troop.compare.child [CODE ...] DIR RECIPE SEED`."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from troop.compare.plan import ComparisonPlan, run_path
from troop.core.errors import TroopError
from troop.runs.directory import CONFIG, RunDirectory


def run(folder: Path, recipe: str, seed: int, allow: Sequence[str] = ()) -> int:
    """Start the run, or resume it if its directory exists; return the exit code of `troop train`.

    `allow` are the names of code outside Troop that the plan may import.
    """
    from troop.experiment import Experiment

    experiment = Experiment.from_dict(ComparisonPlan.read(folder).recipes[recipe], allow)
    experiment = dataclasses.replace(experiment, seed=seed)
    path = run_path(folder, recipe, seed)
    if (path / CONFIG).exists():
        with RunDirectory.open(path, lock=True) as directory:
            result = experiment.resume(directory)
    else:
        result = experiment.run(path)
    return 0 if result.status == "done" else 3


def stop_when_stdin_closes() -> None:
    """Raise SIGINT in this process when standard input closes: the parent died or requests a stop."""
    # A shell starts background processes with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parent_pipe = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def wait() -> None:
        os.read(parent_pipe, 1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()


def main() -> int:
    """Run what the command line names; return the exit code."""
    *allow, folder, recipe, seed = sys.argv[1:]
    try:
        stop_when_stdin_closes()
        return run(Path(folder), recipe, int(seed), allow)
    except TroopError as error:
        print(f"troop: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:  # before the run has installed its own handler
        return 3


if __name__ == "__main__":
    sys.exit(main())
