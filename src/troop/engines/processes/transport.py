"""SocketTransport: all connections of the process of one host."""

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

BACKLOG_WAIT_S = 0.001  # longest wait while messages wait for space in the socket buffer
BLOCKED_WAIT_S = 0.05  # longest wait for space in a mailbox before the flow counters are read again


class SocketTransport:
    """Waits for messages on all connections of a host and passes them to clients, edges and the worker."""

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
        self._backlog: set[Connection] = set()  # connections whose outbox is not empty
        self._readers: dict[int, tuple[Connection, Callable[[], bool]]] = {}  # by file descriptor
        self._register(control, self._read_commands)
        # Pollers of one connection to a server (None: of no connection) and the control connection.
        self._single_pollers: dict[Connection | None, SpinPoller] = {}

    def bind(self, worker: Worker) -> None:
        """Set the worker that handles the driver's commands."""
        self.worker = worker

    def client(self, host: str) -> Client:
        """Return the client that sends calls to a host."""
        return self._clients[host]

    @property
    def awaiting_replies(self) -> bool:
        """Whether calls to peers have not been answered yet."""
        return any(client.pending for client in self._clients.values())

    @property
    def has_undelivered(self) -> bool:
        """Whether an outbox is not empty.

        All other messages are in the socket of their server, which reads them before it returns its state.
        """
        return bool(self._backlog)

    @property
    def backlogged(self) -> bool:
        """Whether control messages wait in the outbox."""
        return self.control.backlogged

    def queue_size(self) -> tuple[int, int]:
        """Return messages and bytes that clients have sent and this host has not handled."""
        counters = [edge.counters for edge in self.edges if edge.counters is not None]
        messages = sum(counter.unhandled_messages() for counter in counters)
        return messages, sum(counter.unhandled_bytes() for counter in counters)

    def send_control(self, verb: str, *args: Any, state: dict[str, Any] | None = None) -> None:  # noqa: ANN401
        """Send a control message to the driver; never blocks. A state is attached as a memfd."""
        if state is None:
            self.control.send(pack((verb, *args)).meta)
            return
        fd = to_memfd(state)
        self.control.send(pack((verb, *args)).meta, (fd,))
        os.close(fd)

    def flush(self, seconds: float) -> None:
        """Wait up to `seconds` until the control messages have left."""
        deadline = time.monotonic() + seconds
        while self.control.backlogged and time.monotonic() < deadline:
            self.control.flush()
            time.sleep(0.01)

    def receive(self, seconds: float) -> bool:
        """Wait up to `seconds` for messages and read them; return whether there is anything to act on.

        A reply of None is nothing to act on.
        """
        if self._backlog:
            self._flush_backlog()
            seconds = min(seconds, BACKLOG_WAIT_S)
        events = self._poller.wait(seconds * 1000)
        return bool(events) and self._read(events)

    def _flush_backlog(self) -> None:
        for connection in list(self._backlog):
            connection.flush()

    def _read(self, events: list[tuple[int, int]]) -> bool:
        useful = False
        for fd, _ in events:
            if (reader := self._readers.get(fd)) is None:
                continue  # the edge was replaced while earlier events were handled
            connection, read = reader
            useful |= read()
            if not connection.open:
                self._unregister(fd)
        return useful

    def _read_commands(self) -> bool:
        """Handle all commands of the driver that have arrived; return whether there was one.

        Raises Shutdown if the driver has closed the connection.
        """
        any_received = False
        while (received := self.control.receive()) is not None:
            any_received = True
            verb, *args = unpack(received[0])
            if verb == "attach":
                self._attach(*args, *received[1])
            else:
                self.worker.handle_command(verb, args, from_memfd(received[1][0]) if received[1] else None)
        if not self.control.open:
            raise Shutdown
        return any_received

    def _attach(self, end: str, peer: str, socket_fd: int, counters_fd: int) -> None:
        edge: Client | ServerConnection = self._clients[peer] if end == "client" else self._servers[peer]
        if edge.connection is not None:
            self._unregister(edge.connection.fileno())
            self._single_pollers.pop(edge.connection, None)
        connection = Connection(socket.socket(fileno=socket_fd), self._backlog)
        edge.attach(connection, counters_fd)
        self._register(connection, edge.read_incoming)

    def _register(self, connection: Connection, read: Callable[[], bool]) -> None:
        self._readers[connection.fileno()] = (connection, read)
        self._poller.poll.register(connection.fileno(), select.POLLIN)

    def _unregister(self, fd: int) -> None:
        if self._readers.pop(fd, None) is not None:
            self._poller.poll.unregister(fd)

    def wait(self, client: Client, done: Callable[[], bool], reason: object, blocked: bool = False) -> None:
        """Block until `done()`; reads only the connection of this client and the commands of the driver."""
        began = time.perf_counter()
        while True:
            # The server's wake-up can be missed in a rare race, so a blocked client checks again by itself.
            self._wait_for(client, 1000 * (BLOCKED_WAIT_S if blocked else HEARTBEAT_S))
            client.read_incoming(blocked)
            if done():
                break
            self.worker.check_wait(str(reason), began)
        self.worker.role_times.add_wait(time.perf_counter() - began, blocked)

    def _wait_for(self, client: Client, milliseconds: float) -> None:
        """Sleep until a message of this client's server or a command arrives; handle commands."""
        connection = client.connection if client.connection is not None and client.connection.open else None
        poller = self._single_pollers.get(connection)
        if poller is None:
            poller = self._single_pollers[connection] = SpinPoller()
            poller.poll.register(self.control.fileno(), select.POLLIN)
            if connection is not None:
                poller.poll.register(connection.fileno(), select.POLLIN)
        if self._backlog:
            self._flush_backlog()
            milliseconds = 1000 * BACKLOG_WAIT_S
        for fd, _ in poller.wait(milliseconds):
            if connection is None or fd != connection.fileno():
                self._read_commands()
