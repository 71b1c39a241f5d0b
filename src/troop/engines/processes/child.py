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

from troop.engines.processes.transport import Switchboard
from troop.engines.rpc.codec import pack
from troop.engines.rpc.connection import Line
from troop.engines.rpc.shared_memory import anonymous
from troop.engines.rpc.transport import Start
from troop.engines.runtime import keep_pages, spare_compiler
from troop.engines.worker import Ended, Worker


def main(start: Start, control: socket.socket) -> None:
    """Live as a host until told to end, or until the launcher is gone."""
    os.setpgid(0, 0)  # a Ctrl-C at the terminal is the launcher's business
    Path("/proc/self/comm").write_text(start.host)  # `top` and `ps` say which host this is
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_launcher, daemon=True).start()
    stack = anonymous(0)
    faulthandler.enable(stack)
    faulthandler.register(signal.SIGUSR1, stack)
    os.environ["OMP_NUM_THREADS"] = str(start.threads)
    keep_pages()
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(start.threads)
    spare_compiler()
    line = Line(control)
    line.send(pack(("hello",)).meta, (stack,))
    worker = Worker(start, Switchboard(start, line))
    try:
        worker.run()
    except Ended:
        worker.close()


def _follow_launcher() -> None:
    """However the launcher dies, end too, with everything this host started."""
    launcher = parent_process()
    assert launcher is not None
    connection.wait([launcher.sentinel])
    os.killpg(0, signal.SIGKILL)
