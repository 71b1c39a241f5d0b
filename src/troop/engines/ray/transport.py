"""RayTransport: connects the worker of one Ray actor with its peers and with the driver."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from troop.engines.ray.client import RayClient
from troop.engines.ray.message import Body, RayMessage, from_body, to_body
from troop.engines.ray.server import RayReplySender, RayServerConnection
from troop.engines.rpc.codec import pack
from troop.engines.rpc.decode import unpack
from troop.engines.rpc.transport import HostSpec
from troop.engines.worker import HEARTBEAT_S, Worker

MAX_OUTBOX = 4  # messages that the driver has not fetched, from which on the worker sends no reports

ControlEnvelope = tuple[int, bytes, Body | None]
"""Sequence number, packed control message, and the state that is attached to it, if any."""


class RayTransport:
    """One queue of callbacks for everything a host receives, and an outbox of control messages to the driver.

    Ray's event loops fill the queue; the thread of the roles runs the callbacks. A callback returns whether
    the worker has something to do because of it.
    """

    worker: Worker

    def __init__(self) -> None:
        self._callbacks: SimpleQueue[tuple[Callable[..., bool], tuple[Any, ...]]] = SimpleQueue()
        self._clients: dict[str, RayClient] = {}
        self._servers: dict[str, RayServerConnection] = {}
        self._commands: dict[int, tuple[bytes, Any]] = {}  # received before their predecessors
        self._last_command = self._last_control = 0  # sequence numbers
        self.edges: list[RayServerConnection] = []
        self.replies = RayReplySender()
        self.outbox: deque[ControlEnvelope] = deque()  # not yet fetched by the driver
        self.on_outbox: Callable[[], object] = lambda: None  # called after every append to the outbox

    def open(self, spec: HostSpec, generation: int) -> None:
        """Create the clients and server connections of all edges of the host."""
        identity = (spec.host, generation)
        for name in dict.fromkeys(spec.servers.values()):
            self._clients[name] = RayClient(name, identity, self, spec.mailbox_bytes)
        self._servers = {name: RayServerConnection(name) for name in spec.clients}
        self.edges = list(self._servers.values())

    def bind(self, worker: Worker) -> None:
        """Set the worker that handles the commands of the driver."""
        self.worker = worker

    def client(self, host: str) -> RayClient:
        """Return the client of the edge to a host."""
        return self._clients[host]

    @property
    def awaiting_replies(self) -> bool:
        """Whether a call to a peer has no reply yet."""
        return any(client.awaiting_replies for client in self._clients.values())

    @property
    def has_undelivered(self) -> bool:
        """Whether a one-way message has not been decoded by its receiver."""
        return any(client.has_undelivered for client in self._clients.values())

    @property
    def backlogged(self) -> bool:
        """Whether the driver falls behind in fetching control messages."""
        return len(self.outbox) >= MAX_OUTBOX

    def queue_size(self) -> tuple[int, int]:
        """Return the number and the bytes of the messages that wait in the inboxes."""
        messages = [message for edge in self.edges for message in edge.inbox]
        return len(messages), sum(message.size for message in messages)

    def send_control(self, verb: str, *args: Any, state: dict[str, Any] | None = None) -> None:  # noqa: ANN401
        """Put a control message for the driver into the outbox without blocking."""
        self._last_control += 1
        body = None if state is None else to_body(pack(state))
        self.outbox.append((self._last_control, bytes(pack((verb, *args)).meta), body))
        self.on_outbox()

    def flush(self, seconds: float) -> None:
        """Block until the driver has fetched all control messages, for at most `seconds`."""
        deadline = time.monotonic() + seconds
        while self.outbox and time.monotonic() < deadline:
            time.sleep(0.01)

    def put(self, callback: Callable[..., bool], *args: Any) -> None:  # noqa: ANN401
        """Queue `callback(*args)` for the thread of the roles; thread-safe."""
        self._callbacks.put((callback, args))

    def put_later(self, seconds: float, callback: Callable[..., bool], *args: Any) -> None:  # noqa: ANN401
        """Queue `callback(*args)` after a delay."""
        timer = threading.Timer(seconds, self.put, (callback, *args))
        timer.daemon = True
        timer.start()

    def receive(self, seconds: float) -> bool:
        """Run callbacks, waiting up to `seconds` for the first; return whether the worker has work to do."""
        waiting = any(edge.inbox for edge in self.edges)  # delivered while a role waited for a reply
        return self._run_callbacks(0.0 if waiting else seconds) or waiting

    def poll(self) -> None:
        """Run the queued callbacks without blocking."""
        self._run_callbacks(0.0)

    def wait(self, done: Callable[[], bool], reason: str, blocked: bool = False) -> None:
        """Run callbacks until `done()`; messages that arrive meanwhile stay in the inboxes.

        `blocked` attributes the time to back-pressure. Raises TimeoutError after the wait limit of the host.
        """
        began = time.perf_counter()
        while not done():
            self._run_callbacks(HEARTBEAT_S)
            self.worker.check_wait(reason, began)
        self.worker.role_times.add_wait(time.perf_counter() - began, blocked)

    def _run_callbacks(self, seconds: float) -> bool:
        useful = False
        try:
            callback, args = (
                self._callbacks.get(timeout=seconds) if seconds > 0 else self._callbacks.get_nowait()
            )
            while True:
                useful |= callback(*args)
                callback, args = self._callbacks.get_nowait()
        except Empty:
            return useful

    def on_message(self, client: str, generation: int, oldest: int, message: RayMessage) -> bool:
        """Deliver a message of a peer; return True."""
        self._servers[client].deliver(generation, oldest, message)
        return True

    def on_command(self, number: int, command: bytes, attached: Any) -> bool:  # noqa: ANN401
        """Handle a command of the driver after all earlier ones; return True."""
        if number > self._last_command:
            self._commands[number] = (command, attached)
        while (next_command := self._commands.pop(self._last_command + 1, None)) is not None:
            self._last_command += 1
            self._handle_command(*next_command)
        return True

    def _handle_command(self, command: bytes, attached: Any) -> None:  # noqa: ANN401
        verb, *args = unpack(command)
        if verb == "attach":
            self._clients[args[0]].attach(attached[0])
        else:
            self.worker.handle_command(verb, args, None if attached is None else from_body(*attached))
