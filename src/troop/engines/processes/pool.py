"""ProcessPool: one operating-system process per host, with its control connection and edges."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing import connection as mp_connection
from typing import Any

from troop.core.program import Program
from troop.engines.pool import ControlMessage, HostHandle, OnControl, host_handles, rendezvous_server
from troop.engines.private_folder import use_for_multiprocessing
from troop.engines.processes import child
from troop.engines.processes.fork_server import PRELOAD_MODULES
from troop.engines.processes.light_process import LightProcess, start_light_server
from troop.engines.rpc.connection import Connection, socket_pair
from troop.engines.rpc.decode import unpack
from troop.engines.rpc.shared_memory import FlowCounters, create_memfd, from_memfd, to_memfd
from troop.engines.runtime import block_stop_signals, thread_limit

LOOPBACK = "127.0.0.1"
STACK_BYTES = 20_000  # of a stack trace that are read


@dataclass
class HostProcess:
    """The process that currently runs a host."""

    process: Any
    connection: Connection
    stack_fd: int | None = None  # faulthandler of the process writes its stack here
    leads_group: bool = False  # whether the process leads a process group of its own


class ProcessPool:
    """Starts, connects, polls and kills the processes of all hosts of a program."""

    deferred: frozenset[str] = frozenset()  # forking is fast, so all hosts start at once

    def __init__(
        self, program: Program, seed: int, start_method: str, mailbox_bytes: int, wait_limit_s: float
    ) -> None:
        self.hosts = host_handles(program)
        self._seed, self._mailbox_bytes, self._wait_limit_s = seed, mailbox_bytes, wait_limit_s
        self.rendezvous = rendezvous_server(self.hosts, LOOPBACK, wait_limit_s)
        self._processes: dict[str, HostProcess] = {}
        self._context: Any = multiprocessing.get_context(start_method)
        if start_method == "forkserver":
            use_for_multiprocessing()
            # The fork server imports these once for all hosts, unless it already runs.
            loaded = sorted(name for name in sys.modules if name.startswith("troop."))
            self._context.set_forkserver_preload([*PRELOAD_MODULES, *loaded])
            if light := [node for host in self.hosts.values() if host.light for node in host.nodes]:
                start_light_server([[node.build.make, node.build] for node in light])
        self._forks = start_method == "forkserver"

    def spawn(self, host: HostHandle) -> None:
        """Start a process for the host; it waits for `start` before it serves calls."""
        driver_end, host_end = socket_pair()
        spec = host.spec(self._seed, self._mailbox_bytes, self._wait_limit_s, rendezvous=self.rendezvous)
        make_process = LightProcess if self._forks and host.light else self._context.Process
        process = make_process(target=child.main, args=(spec, host_end), name=host.name)
        try:
            with block_stop_signals(), thread_limit(host.threads):  # until the child leads its own group
                process.start()
        finally:
            host_end.close()
        host.control = connection = Connection(driver_end)
        self._processes[host.name] = HostProcess(process, connection)
        host.ready = False
        host.last_message = host.spawned = time.monotonic()

    def connect(self, host: HostHandle) -> None:
        """Create new edges between the host and every living client and server of it."""
        for server in dict.fromkeys(host.servers.values()):
            self._connect_edge(host, self.hosts[server])
        for client in host.clients:
            self._connect_edge(self.hosts[client], host)

    def connect_all(self) -> None:
        """Create every edge of the program once."""
        for host in self.hosts.values():
            for server in dict.fromkeys(host.servers.values()):
                self._connect_edge(host, self.hosts[server])

    def _connect_edge(self, client: HostHandle, server: HostHandle) -> None:
        if not (client.alive and server.alive):
            return  # the edge is created when the missing host is spawned
        ends, counters = socket_pair(), create_memfd(FlowCounters.SIZE)
        client.send("attach", "client", server.name, attached=(ends[0].fileno(), counters))
        server.send("attach", "server", client.name, attached=(ends[1].fileno(), counters))
        os.close(counters)
        for end in ends:
            end.close()

    def start(self, host: HostHandle, state: dict[str, Any] | None, restored: bool) -> None:
        """Let the host load `state`, if any, and serve; `restored` marks a restart within a run."""
        if state is None:
            host.send("start", restored)
            return
        fd = to_memfd(state)
        host.send("start", restored, attached=(fd,))
        os.close(fd)

    def poll(self, seconds: float, on_control: OnControl) -> list[HostHandle]:
        """Deliver control messages of hosts for up to `seconds`; return the hosts whose process has ended."""
        for record in self._processes.values():
            record.connection.flush()
        connections: dict[Any, str] = {
            record.connection: name for name, record in self._processes.items() if record.connection.open
        }
        sentinels: dict[Any, str] = {
            record.process.sentinel: name for name, record in self._processes.items()
        }
        ready = mp_connection.wait([*connections, *sentinels], seconds)
        for source in ready:
            if source in connections:
                self._read(connections[source], on_control)
        ended = [sentinels[source] for source in ready if source in sentinels]
        for name in ended:
            self._read(name, on_control)  # messages sent right before the process ended
        return [self.hosts[name] for name in ended]

    def _read(self, name: str, on_control: OnControl) -> None:
        host, record = self.hosts[name], self._processes[name]
        # `on_control` may reap the host, which closes the connection.
        while name in self._processes and (received := record.connection.receive()) is not None:
            host.last_message = time.monotonic()
            message, fds = unpack(received[0]), received[1]
            if message[0] == "hello":
                record.stack_fd, record.leads_group = fds[0], True
            else:
                on_control(host, message, fds)

    def decode_state(self, attached: int) -> dict[str, Any]:
        """Decode the state in the memfd that was attached to a control message."""
        state: dict[str, Any] = from_memfd(attached)
        return state

    def stack_trace(self, host: HostHandle, request: bool = False) -> str:
        """Return what the process wrote of its stack; with `request`, make it write it now."""
        record = self._processes.get(host.name)
        if record is None or record.stack_fd is None:
            return ""
        if request and record.leads_group:
            os.kill(record.process.pid, signal.SIGUSR1)
            time.sleep(0.3)
        return os.pread(record.stack_fd, STACK_BYTES, 0).decode(errors="replace")

    def reap(self, host: HostHandle) -> str:
        """Kill the host's process and all processes it started; return how it ended."""
        record = self._processes.pop(host.name, None)
        if record is None:
            return ""
        process = record.process
        if record.leads_group:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # has no effect if the process has ended, even if its pid is in use again
        process.join(5)
        code: int | None = process.exitcode
        record.connection.close()
        if record.stack_fd is not None:
            os.close(record.stack_fd)
        host.control, host.ready = None, False
        return _exit_reason(code)

    def stop(self, seconds: float, kill_now: Iterable[HostHandle] = ()) -> list[str]:
        """Stop all hosts, kill those in `kill_now` at once and the rest after `seconds`; return the killed.

        The result contains only names of hosts that did not stop in time.
        """
        for host in kill_now:
            self.reap(host)
        for host in self.hosts.values():
            host.send("stop")
        deadline = time.monotonic() + seconds
        while self._processes and time.monotonic() < deadline:
            for host in self.poll(min(0.1, max(0.0, deadline - time.monotonic())), _discard):
                self.reap(host)
        late = [host.name for host in self.hosts.values() if host.alive]
        for host in self.hosts.values():
            self.reap(host)
        self.rendezvous = None  # its store stops listening
        return late


def _discard(host: HostHandle, message: ControlMessage, fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _exit_reason(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"its process ended with exit code {code}"
