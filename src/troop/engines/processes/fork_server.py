"""The fork server: one process imports the modules that hosts need; every host is a fork of it."""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver

from troop.engines.private_folder import use_for_multiprocessing
from troop.engines.runtime import block_stop_signals, thread_limit

# Replay buffers import numba at their first call; preloading it saves each host that time.
PRELOAD_MODULES = ("torch", "numba", "troop.engines.processes.child")


def start_fork_server(*modules: str) -> None:
    """Start the fork server now, so that it imports `modules` while the driver still imports its own.

    All hosts are forked from this server; each host imports what the server has not imported.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOAD_MODULES, *modules])
    use_for_multiprocessing()
    with block_stop_signals(), thread_limit(1):
        forkserver.ensure_running()
