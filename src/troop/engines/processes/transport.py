"""Switchboard: all lines of the process of one host."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from troop.engines.rpc.client import Asking
from troop.engines.rpc.codec import pack
from troop.engines.rpc.connection import Line
from troop.engines.rpc.decode import unpack
from troop.engines.rpc.poller import Lookout
from troop.engines.rpc.server import Answers, Serving
from troop.engines.rpc.shared_memory import opened, parcel
from troop.engines.rpc.transport import Start
from troop.engines.worker import LONG, Ended, Worker


class Switchboard:
    """Sleeps until something comes along one of its lines, and puts it where it belongs."""

    worker: Worker

    def __init__(self, start: Start, control: Line) -> None:
        self.control = control
        self._asking = {
            name: Asking(name, self, start.mailbox) for name in dict.fromkeys(start.elsewhere.values())
        }
        self._serving = {name: Serving(name) for name in start.askers}
        self.edges = list(self._serving.values())
        self.answers = Answers(2 * start.mailbox, self.edges)
        self._lookout = Lookout()
        self._full: set[Line] = set()  # lines on which messages wait
        self._ends: dict[int, tuple[Line, Callable[[], bool]]] = {}  # lines, and what takes in what came
        self._watch(control, self._obey)
        self._alone: dict[Line | None, Lookout] = {}  # of single lines, with the launcher's

    def bind(self, worker: Worker) -> None:
        """Whom to tell what the launcher says."""
        self.worker = worker

    def asking(self, host: str) -> Asking:
        """The asker's end of the edge to a host."""
        return self._asking[host]

    @property
    def expecting(self) -> bool:
        """Whether answers are under way."""
        return any(edge.pending for edge in self._asking.values())

    @property
    def unsettled(self) -> bool:
        """Whether a line is full; what left lies at its receiver, who takes it before it gives its state."""
        return bool(self._full)

    @property
    def stuffed(self) -> bool:
        """Whether the launcher has not taken what was said."""
        return self.control.stuffed

    def queue(self) -> tuple[int, int]:
        """Letters and bytes that wait here."""
        ledgers = [edge.ledger for edge in self.edges if edge.ledger is not None]
        return sum(ledger.letters() for ledger in ledgers), sum(ledger.bytes() for ledger in ledgers)

    def say(self, what: str, *rest: Any, state: dict[str, Any] | None = None) -> None:  # noqa: ANN401
        """Tell the launcher; never waits."""
        if state is None:
            self.control.send(pack((what, *rest)).meta)
            return
        fd = parcel(state)
        self.control.send(pack((what, *rest)).meta, (fd,))
        os.close(fd)

    def drain(self, seconds: float) -> None:
        """See that what was said leaves."""
        deadline = time.monotonic() + seconds
        while self.control.stuffed and time.monotonic() < deadline:
            self.control.flush()
            time.sleep(0.01)

    def receive(self, seconds: float) -> bool:
        """Take in what comes within this time; whether it is worth acting on (an answer of None is not)."""
        if self._full:
            for line in list(self._full):
                line.flush()
            seconds = min(seconds, 0.001)
        events = self._lookout.wait(seconds * 1000)
        return bool(events) and self._take(events)

    def _take(self, events: list[tuple[int, int]]) -> bool:
        useful = False
        for fd, _ in events:
            if (end := self._ends.get(fd)) is None:
                continue  # an edge may have been replaced just now
            line, take = end
            useful |= take()
            if not line.open:
                self._unwatch(fd)
        return useful

    def _obey(self) -> bool:
        """Read what the launcher says; whether it said anything."""
        said = False
        while (came := self.control.receive()) is not None:
            said = True
            what, *rest = unpack(came[0])
            if what == "attach":
                self._attach(*rest, *came[1])
            else:
                self.worker.obey(what, rest, opened(came[1][0]) if came[1] else None)
        if not self.control.open:
            raise Ended
        return said

    def _attach(self, kind: str, peer: str, end: int, ledger: int) -> None:
        edge: Asking | Serving = self._asking[peer] if kind == "asking" else self._serving[peer]
        if edge.line is not None:
            self._unwatch(edge.line.fileno())
            self._alone.pop(edge.line, None)
        line = Line(socket.socket(fileno=end), self._full)
        edge.attach(line, ledger)
        self._watch(line, edge.pump)

    def _watch(self, line: Line, take: Callable[[], bool]) -> None:
        self._ends[line.fileno()] = (line, take)
        self._lookout.poll.register(line.fileno(), select.POLLIN)

    def _unwatch(self, fd: int) -> None:
        if self._ends.pop(fd, None) is not None:
            self._lookout.poll.unregister(fd)

    def wait(self, edge: Asking, done: Callable[[], bool], why: object, full: bool = False) -> None:
        """Wait for one edge, deaf to all others but the launcher."""
        began = time.perf_counter()
        while True:
            # Room may be made without a word in the rarest of races: then it is found a little later.
            self._listen(edge, 50 if full else 1000 * LONG)
            edge.pump(full)
            if done():
                break
            self.worker.waited(str(why), began)
        self.worker.meter.away(time.perf_counter() - began, full)

    def _listen(self, edge: Asking, milliseconds: float) -> None:
        """Sleep until something comes along the edge or from the launcher, whom it obeys."""
        line = edge.line if edge.line is not None and edge.line.open else None
        lookout = self._alone.get(line)
        if lookout is None:
            lookout = self._alone[line] = Lookout()
            lookout.poll.register(self.control.fileno(), select.POLLIN)
            if line is not None:
                lookout.poll.register(line.fileno(), select.POLLIN)
        if self._full:
            for other in list(self._full):
                other.flush()
            milliseconds = 1
        for fd, _ in lookout.wait(milliseconds):
            if line is None or fd != line.fileno():
                self._obey()
