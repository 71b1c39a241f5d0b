"""One function call in a process like that of a host."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from troop.engines.private_folder import use_for_multiprocessing
from troop.engines.processes.fork_server import PRELOAD_MODULES
from troop.engines.processes.light_process import LightProcess, start_light_server


def call_in_process(function: Callable[..., int], args: tuple[Any, ...], light: bool = False) -> int:
    """Return `function(*args)` of a process forked as those of hosts are, or as those of light hosts.

    Raises EOFError if the function raises.
    """
    if light:
        start_light_server(list(args))
        make_process: Any = LightProcess
    else:
        context = multiprocessing.get_context("forkserver")
        use_for_multiprocessing()
        context.set_forkserver_preload(list(PRELOAD_MODULES))
        make_process = context.Process
    own_end, child_end = multiprocessing.Pipe(duplex=False)
    process = make_process(target=_send_result, args=(function, args, child_end))
    process.start()
    child_end.close()
    try:
        return int(own_end.recv_bytes())
    finally:
        process.join()


def _send_result(function: Callable[..., int], args: tuple[Any, ...], connection: Connection) -> None:
    connection.send_bytes(str(function(*args)).encode())
