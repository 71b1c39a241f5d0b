"""The process of one host, from start to exit."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
from multiprocessing import connection as mp_connection
from multiprocessing import parent_process
from pathlib import Path
from types import FrameType

from troop.core.engine import STOP_SIGNALS
from troop.engines.processes.capacity import files_of_host, raise_file_limit
from troop.engines.processes.transport import SocketTransport
from troop.engines.rpc.codec import pack
from troop.engines.rpc.connection import Connection
from troop.engines.rpc.shared_memory import create_memfd
from troop.engines.rpc.transport import HostSpec
from troop.engines.runtime import defer_compiler_import, keep_freed_pages
from troop.engines.worker import Shutdown, Worker


def main(spec: HostSpec, control_end: socket.socket) -> None:
    """Run a host until the driver stops it or dies."""
    os.setpgid(0, 0)  # so that Ctrl-C in the terminal reaches only the driver
    Path("/proc/self/comm").write_text(spec.host)  # the name that `top` and `ps` show
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):  # a cluster signals all processes; the driver stops hosts
        signal.signal(number, _ignore)  # unlike SIG_IGN not inherited by programs that an env starts
    threading.Thread(target=_exit_with_driver, daemon=True).start()
    stack_fd = create_memfd(0)
    faulthandler.enable(stack_fd)
    faulthandler.register(signal.SIGUSR1, stack_fd)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    os.environ["OMP_NUM_THREADS"] = str(spec.threads)
    if not all(node.light for node in spec.program.nodes.values()):
        keep_freed_pages()
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(spec.threads)
    defer_compiler_import()
    raise_file_limit(files_of_host(spec))  # the fork server may be older than the driver's own limit
    control = Connection(control_end)
    control.send(pack(("hello",)).meta, (stack_fd,))
    worker = Worker(spec, SocketTransport(spec, control))
    try:
        worker.run()
    except Shutdown:
        worker.close()


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


def _exit_with_driver() -> None:
    """Kill this process and all processes it has started once the driver has died, however it died."""
    driver = parent_process()
    assert driver is not None
    mp_connection.wait([driver.sentinel])
    os.killpg(0, signal.SIGKILL)
