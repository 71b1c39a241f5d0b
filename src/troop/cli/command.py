"""The entry point of `troop`: handles signals before it imports anything that takes time."""

from __future__ import annotations

import gc
import os
import signal
import sys

from troop.core.signals import STOP_SIGNALS

TYPE_CHECKING = False  # type checkers take it as True; importing typing would delay the command
if TYPE_CHECKING:
    from typing import NoReturn


def main(argv: list[str] | None = None) -> None:
    """Run `troop ARGV` and exit the process with its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    trains = argv[:1] in (["train"], ["resume"])
    previous = {
        number: signal.signal(number, _exit_early)
        for number in (STOP_SIGNALS if trains else (signal.SIGINT,))
    }
    if {"-h", "--help"} & set(argv):
        _print_help(argv)
    from troop.cli.main import run

    if not trains:
        signal.signal(signal.SIGINT, previous[signal.SIGINT])
    code = run(argv, warm_up=True)
    ray = sys.modules.get("troop.engines.ray.cluster")
    if ray is not None and ray.BackgroundInit.running is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        ray.BackgroundInit.running.kill_and_exit(code)
    sys.exit(code)


def _print_help(argv: list[str]) -> NoReturn:
    """Print the help and exit at once.

    A quarter of the time would go into the search for garbage among the objects of torch during its import,
    and into their deletion at the end.
    """
    gc.disable()
    from troop.cli.main import run

    try:
        code = run(argv)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:  # the reader has seen enough
        pass
    os._exit(code)


def _exit_early(number: int, frame: object) -> None:
    """Exit before the run has begun, or after it has ended: there is nothing to save.

    An exception could be lost in the import of a library, or appear as an error of it.
    """
    os.write(2, b"troop: interrupted.\n")
    ray = sys.modules.get("troop.engines.ray.cluster")
    if ray is not None and ray.BackgroundInit.running is not None:
        ray.BackgroundInit.running.kill_and_exit(130)
    if (private := sys.modules.get("troop.engines.private_folder")) is not None:
        private.delete_private_folder()
    os._exit(130)
