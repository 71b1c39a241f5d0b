"""Switchboard: all lines of the process of one host."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from troop.engines.rpc.client import Client
from troop.engines.rpc.codec import pack
from troop.engines.rpc.connection import Connection
from troop.engines.rpc.decode import unpack
from troop.engines.rpc.poller import SpinPoller
from troop.engines.rpc.server import ReplySlots, ServerConnection
from troop.engines.rpc.shared_memory import from_memfd, to_memfd
from troop.engines.rpc.transport import HostSpec
from troop.engines.worker import HEARTBEAT_S, Shutdown, Worker


class SocketTransport:
    """Sleeps until something comes along one of its lines, and puts it where it belongs."""

    worker: Worker

    def __init__(self, spec: HostSpec, control: Connection) -> None:
        self.control = control
        self._clients = {
            name: Client(name, self, spec.mailbox_bytes) for name in dict.fromkeys(spec.servers.values())
        }
        self._servers = {name: ServerConnection(name) for name in spec.clients}
        self.edges = list(self._servers.values())
        self.replies = ReplySlots(2 * spec.mailbox_bytes, self.edges)
        self._poller = SpinPoller()
        self._full: set[Connection] = set()  # lines on which messages wait
        self._ends: dict[
            int, tuple[Connection, Callable[[], bool]]
        ] = {}  # lines, and what takes in what came
        self._watch(control, self._handle_commands)
        self._alone: dict[Connection | None, SpinPoller] = {}  # of single lines, with the launcher's

    def bind(self, worker: Worker) -> None:
        """Whom to tell what the launcher says."""
        self.worker = worker

    def client(self, host: str) -> Client:
        """The asker's end of the edge to a host."""
        return self._clients[host]

    @property
    def awaiting_replies(self) -> bool:
        """Whether answers are under way."""
        return any(edge.pending for edge in self._clients.values())

    @property
    def has_undelivered(self) -> bool:
        """Whether a line is full; what left lies at its receiver, who takes it before it gives its state."""
        return bool(self._full)

    @property
    def backlogged(self) -> bool:
        """Whether the launcher has not taken what was said."""
        return self.control.backlogged

    def queue_size(self) -> tuple[int, int]:
        """Letters and bytes that wait here."""
        ledgers = [edge.counters for edge in self.edges if edge.counters is not None]
        return sum(counters.messages() for counters in ledgers), sum(counters.bytes() for counters in ledgers)

    def send_control(self, what: str, *rest: Any, state: dict[str, Any] | None = None) -> None:  # noqa: ANN401
        """Tell the launcher; never waits."""
        if state is None:
            self.control.send(pack((what, *rest)).meta)
            return
        fd = to_memfd(state)
        self.control.send(pack((what, *rest)).meta, (fd,))
        os.close(fd)

    def flush(self, seconds: float) -> None:
        """See that what was said leaves."""
        deadline = time.monotonic() + seconds
        while self.control.backlogged and time.monotonic() < deadline:
            self.control.flush()
            time.sleep(0.01)

    def receive(self, seconds: float) -> bool:
        """Take in what comes within this time; whether it is worth acting on (an answer of None is not)."""
        if self._full:
            for connection in list(self._full):
                connection.flush()
            seconds = min(seconds, 0.001)
        events = self._poller.wait(seconds * 1000)
        return bool(events) and self._take(events)

    def _take(self, events: list[tuple[int, int]]) -> bool:
        useful = False
        for fd, _ in events:
            if (end := self._ends.get(fd)) is None:
                continue  # an edge may have been replaced just now
            connection, take = end
            useful |= take()
            if not connection.open:
                self._unwatch(fd)
        return useful

    def _handle_commands(self) -> bool:
        """Read what the launcher says; whether it said anything."""
        said = False
        while (came := self.control.receive()) is not None:
            said = True
            what, *rest = unpack(came[0])
            if what == "attach":
                self._attach(*rest, *came[1])
            else:
                self.worker.handle_command(what, rest, from_memfd(came[1][0]) if came[1] else None)
        if not self.control.open:
            raise Shutdown
        return said

    def _attach(self, kind: str, peer: str, end: int, counters: int) -> None:
        edge: Client | ServerConnection = self._clients[peer] if kind == "client" else self._servers[peer]
        if edge.connection is not None:
            self._unwatch(edge.connection.fileno())
            self._alone.pop(edge.connection, None)
        connection = Connection(socket.socket(fileno=end), self._full)
        edge.attach(connection, counters)
        self._watch(connection, edge.read_incoming)

    def _watch(self, connection: Connection, take: Callable[[], bool]) -> None:
        self._ends[connection.fileno()] = (connection, take)
        self._poller.poll.register(connection.fileno(), select.POLLIN)

    def _unwatch(self, fd: int) -> None:
        if self._ends.pop(fd, None) is not None:
            self._poller.poll.unregister(fd)

    def wait(self, edge: Client, done: Callable[[], bool], why: object, full: bool = False) -> None:
        """Wait for one edge, deaf to all others but the launcher."""
        began = time.perf_counter()
        while True:
            # Room may be made without a word in the rarest of races: then it is found a little later.
            self._listen(edge, 50 if full else 1000 * HEARTBEAT_S)
            edge.read_incoming(full)
            if done():
                break
            self.worker.check_wait(str(why), began)
        self.worker.role_times.add_wait(time.perf_counter() - began, full)

    def _listen(self, edge: Client, milliseconds: float) -> None:
        """Sleep until something comes along the edge or from the launcher, whom it obeys."""
        connection = edge.connection if edge.connection is not None and edge.connection.open else None
        poller = self._alone.get(connection)
        if poller is None:
            poller = self._alone[connection] = SpinPoller()
            poller.poll.register(self.control.fileno(), select.POLLIN)
            if connection is not None:
                poller.poll.register(connection.fileno(), select.POLLIN)
        if self._full:
            for other in list(self._full):
                other.flush()
            milliseconds = 1
        for fd, _ in poller.wait(milliseconds):
            if connection is None or fd != connection.fileno():
                self._handle_commands()
