"""Child: the process of one host, from its first line to its last."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
from multiprocessing import connection, parent_process
from pathlib import Path

from troop.engines.processes.transport import SocketTransport
from troop.engines.rpc.codec import pack
from troop.engines.rpc.connection import Connection
from troop.engines.rpc.shared_memory import create_memfd
from troop.engines.rpc.transport import HostSpec
from troop.engines.runtime import defer_compiler_import, keep_freed_pages
from troop.engines.worker import Shutdown, Worker


def main(spec: HostSpec, control: socket.socket) -> None:
    """Live as a host until told to end, or until the launcher is gone."""
    os.setpgid(0, 0)  # a Ctrl-C at the terminal is the launcher's business
    Path("/proc/self/comm").write_text(spec.host)  # `top` and `ps` say which host this is
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_launcher, daemon=True).start()
    stack = create_memfd(0)
    faulthandler.enable(stack)
    faulthandler.register(signal.SIGUSR1, stack)
    os.environ["OMP_NUM_THREADS"] = str(spec.threads)
    keep_freed_pages()
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(spec.threads)
    defer_compiler_import()
    connection = Connection(control)
    connection.send(pack(("hello",)).meta, (stack,))
    worker = Worker(spec, SocketTransport(spec, connection))
    try:
        worker.run()
    except Shutdown:
        worker.close()


def _follow_launcher() -> None:
    """However the launcher dies, end too, with everything this host started."""
    launcher = parent_process()
    assert launcher is not None
    connection.wait([launcher.sentinel])
    os.killpg(0, signal.SIGKILL)
