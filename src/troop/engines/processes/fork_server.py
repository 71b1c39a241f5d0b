"""The fork server: one process imports what hosts are made of, and every host is a fork of it."""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver

from troop.engines.runtime import block_sigint, thread_limit

PRELOAD_MODULES = (
    "torch",
    "numba",
    "troop.engines.processes.child",
)  # numba: replays load it at the first call, each its own


def start_fork_server(*modules: str) -> None:
    """Start the fork server now, so that it imports these while the launcher still imports its own.

    Hosts are then forked from this one whatever is asked for later; what it lacks, each imports itself.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOAD_MODULES, *modules])
    with block_sigint(), thread_limit(1):
        forkserver.ensure_running()
