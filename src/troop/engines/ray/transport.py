"""RayPost: all that comes to a host over Ray, and all that it has to say."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from troop.engines.ray.client import Body, RayAsking, body, opened
from troop.engines.ray.server import RayAnswers, RayServing
from troop.engines.rpc.codec import pack
from troop.engines.rpc.decode import unpack
from troop.engines.rpc.transport import Start
from troop.engines.worker import LONG, Worker

STUFFED = 4  # messages that the launcher has not taken, from which on reports wait
Message = tuple[int, bytes, Body | None]
"""Number, packed words, and a state if one goes along."""


class RayPost:
    """All that comes to a host, in one queue, and all that it has to say to its launcher."""

    worker: Worker

    def __init__(self) -> None:
        self._events: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self._asking: dict[str, RayAsking] = {}
        self._serving: dict[str, RayServing] = {}
        self._orders: dict[int, tuple[bytes, Any]] = {}  # of the launcher, come before their turn
        self._obeyed = self._numbered = 0
        self.edges: list[RayServing] = []
        self.answers = RayAnswers()
        self.said: deque[Message] = deque()  # what the launcher has not taken yet
        self.spoke: Callable[[], object] = lambda: None  # is told when there is something to hear

    def open(self, start: Start, life: int) -> None:
        """Make the ends of all edges."""
        me = (start.host, life)
        for name in dict.fromkeys(start.elsewhere.values()):
            self._asking[name] = RayAsking(name, me, self, start.mailbox)
        self._serving = {name: RayServing(name) for name in start.askers}
        self.edges = list(self._serving.values())

    def bind(self, worker: Worker) -> None:
        """Whom to tell what the launcher says."""
        self.worker = worker

    def asking(self, host: str) -> RayAsking:
        """The asker's end of the edge to a host."""
        return self._asking[host]

    @property
    def expecting(self) -> bool:
        """Whether answers are under way."""
        return any(edge.expecting for edge in self._asking.values())

    @property
    def unsettled(self) -> bool:
        """Whether something told was not opened yet; Ray takes its time."""
        return any(edge.unsettled for edge in self._asking.values())

    @property
    def stuffed(self) -> bool:
        """Whether the launcher has not taken what was said."""
        return len(self.said) >= STUFFED

    def queue(self) -> tuple[int, int]:
        """Letters and bytes that wait here."""
        letters = [letter for edge in self.edges for letter in edge.inbox]
        return len(letters), sum(letter.size for letter in letters)

    def say(self, what: str, *rest: Any, state: dict[str, Any] | None = None) -> None:  # noqa: ANN401
        """Tell the launcher; never waits."""
        self._numbered += 1
        given = None if state is None else body(pack(state))
        self.said.append((self._numbered, bytes(pack((what, *rest)).meta), given))
        self.spoke()

    def drain(self, seconds: float) -> None:
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
            self._next(LONG)
            self.worker.waited(why, began)
        self.worker.meter.away(time.perf_counter() - began, full)

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
        if isinstance(what, RayAsking):
            return what.on_step(*rest)
        if what == "letter":
            asker, life, settled, letter = rest
            self._serving[asker].take(life, settled, letter)
            return True
        number, words, given = rest
        if number > self._obeyed:
            self._orders[number] = (words, given)
        while (order := self._orders.pop(self._obeyed + 1, None)) is not None:
            self._obeyed += 1
            self._obey(*order)
        return True

    def _obey(self, words: bytes, given: Any) -> None:  # noqa: ANN401
        what, *rest = unpack(words)
        if what == "attach":
            self._asking[rest[0]].attach(given[0])
        else:
            self.worker.obey(what, rest, None if given is None else opened(*given))
