"""The fork server: one process imports what hosts are made of, and every host is a fork of it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing import forkserver

from troop.engines.runtime import THREADS

NEEDED = (
    "torch",
    "numba",
    "troop.engines.processes.child",
)  # numba: replays load it at the first call, each its own


def warm(*modules: str) -> None:
    """Start the fork server now, so that it imports these while the launcher still imports its own.

    Hosts are then forked from this one whatever is asked for later; what it lacks, each imports itself.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload([*NEEDED, *modules])
    with unheard(), few_threads(1):
        forkserver.ensure_running()


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """What is started inside does not hear a Ctrl-C at the terminal, which is the launcher's business."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def few_threads(threads: int) -> Iterator[None]:
    """Libraries read these when they are loaded; what is started inside, or its fork server, has them set."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
