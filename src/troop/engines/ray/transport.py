"""RayPost: all that comes to a host over Ray, and all that it has to say."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from troop.engines.ray.client import Body, RayClient, from_body, to_body
from troop.engines.ray.server import RayReplySender, RayServerConnection
from troop.engines.rpc.codec import pack
from troop.engines.rpc.decode import unpack
from troop.engines.rpc.transport import HostSpec
from troop.engines.worker import HEARTBEAT_S, Worker

STUFFED = 4  # messages that the launcher has not taken, from which on reports wait
ControlEnvelope = tuple[int, bytes, Body | None]
"""Number, packed words, and a state if one goes along."""


class RayTransport:
    """All that comes to a host, in one queue, and all that it has to say to its launcher."""

    worker: Worker

    def __init__(self) -> None:
        self._events: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self._clients: dict[str, RayClient] = {}
        self._servers: dict[str, RayServerConnection] = {}
        self._orders: dict[int, tuple[bytes, Any]] = {}  # of the launcher, come before their turn
        self._obeyed = self._numbered = 0
        self.edges: list[RayServerConnection] = []
        self.replies = RayReplySender()
        self.said: deque[ControlEnvelope] = deque()  # what the launcher has not taken yet
        self.spoke: Callable[[], object] = lambda: None  # is told when there is something to hear

    def open(self, spec: HostSpec, generation: int) -> None:
        """Make the ends of all edges."""
        me = (spec.host, generation)
        for name in dict.fromkeys(spec.servers.values()):
            self._clients[name] = RayClient(name, me, self, spec.mailbox_bytes)
        self._servers = {name: RayServerConnection(name) for name in spec.clients}
        self.edges = list(self._servers.values())

    def bind(self, worker: Worker) -> None:
        """Whom to tell what the launcher says."""
        self.worker = worker

    def client(self, host: str) -> RayClient:
        """The asker's end of the edge to a host."""
        return self._clients[host]

    @property
    def awaiting_replies(self) -> bool:
        """Whether answers are under way."""
        return any(edge.awaiting_replies for edge in self._clients.values())

    @property
    def has_undelivered(self) -> bool:
        """Whether something told was not opened yet; Ray takes its time."""
        return any(edge.has_undelivered for edge in self._clients.values())

    @property
    def backlogged(self) -> bool:
        """Whether the launcher has not taken what was said."""
        return len(self.said) >= STUFFED

    def queue_size(self) -> tuple[int, int]:
        """Letters and bytes that wait here."""
        messages = [message for edge in self.edges for message in edge.inbox]
        return len(messages), sum(message.size for message in messages)

    def send_control(self, what: str, *rest: Any, state: dict[str, Any] | None = None) -> None:  # noqa: ANN401
        """Tell the launcher; never waits."""
        self._numbered += 1
        given = None if state is None else to_body(pack(state))
        self.said.append((self._numbered, bytes(pack((what, *rest)).meta), given))
        self.spoke()

    def flush(self, seconds: float) -> None:
        """See that what was said is taken."""
        deadline = time.monotonic() + seconds
        while self.said and time.monotonic() < deadline:
            time.sleep(0.01)

    def put(self, *event: Any) -> None:  # noqa: ANN401
        """Remember for the role's thread; may be called from any."""
        self._events.put(event)

    def put_later(self, seconds: float, *event: Any) -> None:  # noqa: ANN401
        """The same, after a while."""
        timer = threading.Timer(seconds, self._events.put, (event,))
        timer.daemon = True
        timer.start()

    def receive(self, seconds: float) -> bool:
        """Take in what comes within this time; whether it is worth acting on."""
        waiting = any(edge.inbox for edge in self.edges)  # came while a role waited for an answer
        return self._next(0.0 if waiting else seconds) or waiting

    def look(self) -> None:
        """Take in what has come by now."""
        self._next(0.0)

    def wait(self, done: Callable[[], bool], why: str, full: bool = False) -> None:
        """Wait until `done()`; letters that come meanwhile are served later."""
        began = time.perf_counter()
        while not done():
            self._next(HEARTBEAT_S)
            self.worker.check_wait(why, began)
        self.worker.role_times.add_wait(time.perf_counter() - began, full)

    def _next(self, seconds: float) -> bool:
        useful = False
        try:
            event = self._events.get(timeout=seconds) if seconds > 0 else self._events.get_nowait()
            while True:
                useful |= self._take(*event)
                event = self._events.get_nowait()
        except Empty:
            return useful

    def _take(self, what: Any, *rest: Any) -> bool:  # noqa: ANN401
        if isinstance(what, RayClient):
            return what.on_outcome(*rest)
        if what == "message":
            client, generation, settled, message = rest
            self._servers[client].take(generation, settled, message)
            return True
        number, words, given = rest
        if number > self._obeyed:
            self._orders[number] = (words, given)
        while (order := self._orders.pop(self._obeyed + 1, None)) is not None:
            self._obeyed += 1
            self._handle_commands(*order)
        return True

    def _handle_commands(self, words: bytes, given: Any) -> None:  # noqa: ANN401
        what, *rest = unpack(words)
        if what == "attach":
            self._clients[rest[0]].attach(given[0])
        else:
            self.worker.handle_command(what, rest, None if given is None else from_body(*given))
