"""Worker: what runs in the process of one host."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from troop.core.errors import TroopError
from troop.core.program import Program
from troop.engines.answering import Serving
from troop.engines.codec import pack
from troop.engines.host import Host
from troop.engines.line import Line
from troop.engines.mailbox import Asking
from troop.engines.meter import Meter, Sheet
from troop.engines.serving import Desk
from troop.engines.shared import opened, parcel
from troop.engines.stub import Stub
from troop.engines.unpacking import unpack

SHORT, LONG = 0.1, 1.0  # seconds between reports: of a host that moves, of any host
CLOSING = 5.0  # seconds for a failed host to close its roles
RESTS = (0.001, 0.002, 0.004, 0.008, 0.01)  # seconds until a role that had nothing to do is asked again


@dataclass(frozen=True)
class Start:
    """All that a host's process is given."""

    host: str
    program: Program  # its own nodes
    elsewhere: dict[str, str]  # the hosts of the nodes it holds
    askers: tuple[str, ...]  # hosts that hold its nodes
    seed: int
    threads: int
    mailbox: int  # bytes
    patience: float  # seconds it waits for a peer


class Ended(BaseException):
    """The launcher wants this process to end while a role waits."""


class Worker:
    """Loops `step()` of the host's active roles, serves letters in between, and listens to the launcher."""

    def __init__(self, start: Start, control: Line) -> None:
        self.start, self.control = start, control
        self.asking = {
            name: Asking(name, self, start.mailbox) for name in dict.fromkeys(start.elsewhere.values())
        }
        self.serving = {name: Serving(name) for name in start.askers}
        self.sheet, self.meter = Sheet(), Meter(list(start.program.nodes))
        self.holding, self.ending, self.begun = True, False, False
        self.owed: list[str] = []  # what the launcher wants at the next boundary
        self.given: dict[str, Any] | None = None
        self.restored = False
        self._at = ("", "its constructor")  # node and what it is doing
        self._poll = select.poll()
        self._full: set[Line] = set()  # lines on which messages wait
        self._ends: dict[int, tuple[Line, Asking | Serving | None]] = {}
        self._watch(control, None)
        self._reported = self._read = time.monotonic()
        self._moved = 0
        self._idle, self._woken = 0, False
        self._alone: tuple[Line | None, select.poll] = (None, select.poll())

    def run(self) -> None:
        """Build, take back what was saved, then loop."""
        try:
            self._open()
            while not self.ending:
                self._loop()
        except Exception as error:  # a role failed: its state may be corrupt, so the process ends
            self._fail(error)
            os._exit(1)  # whatever threads the role has left
        self.close()

    def _open(self) -> None:
        self.host = Host(self.start.program, self.start.seed, self._stub, self._building)
        self.desk = Desk(
            self.host, list(self.serving.values()), self.meter, self._doing, 2 * self.start.mailbox
        )
        while not self.begun:
            self._receive(LONG)
            if self.ending:
                raise Ended
        if self.given is not None:
            self.host.load_state_dict(self.given, self._wanted)
            self.given = None
            if self.restored:
                for role in self.host.roles.values():
                    if hasattr(role, "cut"):
                        role.cut()  # its peers went on meanwhile: what comes next does not join what it has
        saves = any(
            hasattr(role, "state_dict") or hasattr(role, "latest") for role in self.host.roles.values()
        )
        self._say("ready", saves, bool(self.host.active), self.host.notes())

    def _wanted(self, role: Any) -> bool:  # noqa: ANN401
        """Whether a role takes back its saved state: all do in a resumed run, not all after a death."""
        return not (self.restored and getattr(role, "expendable", False))

    def _stub(self, node: str) -> Stub:
        return Stub(self.asking[self.start.elsewhere[node]], node)

    def _building(self, name: str) -> None:
        self._at = (name, "its constructor")

    def _doing(self, node: str, what: str) -> None:
        self._at = (node, what)

    def _loop(self) -> None:
        if not self._woken:
            self._receive(0.0)
        self._woken = False
        served = self.desk.serve()
        if self.owed:
            self._boundary()
        stepping = bool(self.host.active) and not self.holding
        moved = stepping and self._round()
        self._report(moved or served)
        if moved or (served and stepping):
            self._idle = 0
        elif stepping:
            self._rest()
        else:
            self._serve_only()

    def _serve_only(self) -> None:
        """No role steps: do nothing but answer, until the launcher wants something or a report is due."""
        until = self._reported + (SHORT if self._moved else LONG)
        while not (self.owed or self.ending or self._woken):
            left = until - time.monotonic()
            if left <= 0:
                break
            if self._receive(left) and not self.desk.serve():
                self._woken = True  # by the launcher

    def _round(self) -> bool:
        moved = False
        for name in self.host.active:
            metrics = self._step(name)
            if metrics is not None:
                moved = True
                self.sheet.add(metrics)
        return moved

    def _step(self, name: str) -> Any:  # noqa: ANN401
        self._at = (name, "step")
        began = time.perf_counter()
        metrics = self.host.roles[name].step()
        self.desk.changed()
        self.meter.worked(name, time.perf_counter() - began, int(metrics is not None))
        self._moved += metrics is not None
        return metrics

    def _rest(self) -> None:
        """Nothing to do: sleep until a letter, an answer or the launcher comes, but not for long."""
        left = seconds = RESTS[min(self._idle, len(RESTS) - 1)]
        self._idle += 1
        began = time.perf_counter()
        while left > 0 and not self.ending and not self._woken:
            self._woken = self._receive(left)
            left = seconds - (time.perf_counter() - began)
        if any(edge.pending for edge in self.asking.values()):
            self.meter.rested(self.host.active[0], time.perf_counter() - began)

    def _boundary(self) -> None:
        """What the launcher asked for, between steps."""
        while self.owed:
            what = self.owed.pop(0)
            if what == "held":
                self._report(True, force=True)  # what was done before the hold is counted before it
                self._say("held")
            elif what == "state":
                self.desk.pump()
                self.desk.serve()
                fd = parcel(self.host.state_dict())
                self._say("state", fds=(fd,))
                os.close(fd)
            else:
                metrics = self._step(what)
                plain = None if metrics is None else {name: float(value) for name, value in metrics.items()}
                self._say("stepped", what, plain)

    def _receive(self, seconds: float) -> bool:
        """Take in what comes within this time; whether it is worth acting on (an answer of None is not)."""
        if self._full:
            for line in list(self._full):
                line.flush()
            seconds = min(seconds, 0.001)
        events = self._poll.poll(seconds * 1000)
        return bool(events) and self._take(events)

    def _take(self, events: list[tuple[int, int]]) -> bool:
        useful = False
        for fd, _ in events:
            line, edge = self._ends.get(fd, (None, None))  # an edge may have been replaced just now
            if line is None:
                continue
            if isinstance(edge, Serving):
                edge.pump()
                useful = useful or bool(edge.inbox)
            elif edge is None:
                useful |= self._obey()
            else:
                useful |= edge.pump()
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
            elif what == "begin":
                self.begun, self.restored = True, rest[0]
                self.given = opened(came[1][0]) if came[1] else None
            elif what == "hold":
                self.holding = True
                self.owed.append("held")
            elif what == "go":
                self.holding = False
            elif what == "end":
                self.ending = True
            else:
                self.owed.append(rest[0] if what == "step" else what)
        if not self.control.open:
            raise Ended
        return said

    def _attach(self, kind: str, peer: str, end: int, ledger: int) -> None:
        edge: Asking | Serving = self.asking[peer] if kind == "asking" else self.serving[peer]
        if edge.line is not None:
            self._unwatch(edge.line.fileno())
        line = Line(socket.socket(fileno=end), self._full)
        edge.attach(line, ledger)
        self._watch(line, edge)

    def _watch(self, line: Line, edge: Asking | Serving | None) -> None:
        self._ends[line.fileno()] = (line, edge)
        self._poll.register(line.fileno(), select.POLLIN)

    def _unwatch(self, fd: int) -> None:
        if self._ends.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def wait(self, edge: Asking, done: Callable[[], bool], why: str, full: bool = False) -> None:
        """Wait for one edge, deaf to all others but the launcher."""
        began = time.perf_counter()
        while not done():
            # Room may be made without a word in the rarest of races: then it is found a little later.
            self._listen(edge, 50 if full else 1000 * LONG)
            if self.ending:
                raise Ended
            edge.pump(everything=full)
            seconds = time.perf_counter() - began
            if seconds > self.start.patience:
                raise TimeoutError(f"waited {seconds:.0f} s for {why}")
            if seconds > LONG:
                self._report(False)
        self.meter.away(time.perf_counter() - began, full)

    def _listen(self, edge: Asking, milliseconds: float) -> None:
        """Sleep until something comes along the edge or from the launcher, whom it obeys."""
        line = edge.line if edge.line is not None and edge.line.open else None
        if line is not None and line is self._alone[0]:
            poll = self._alone[1]  # mostly it is the same edge again
        else:
            poll = select.poll()
            poll.register(self.control.fileno(), select.POLLIN)
            if line is not None:
                poll.register(line.fileno(), select.POLLIN)
            self._alone = (line, poll)
        for other in list(self._full):
            other.flush()
            milliseconds = 1
        if any(fd == self.control.fileno() for fd, _ in poll.poll(milliseconds)):
            self._obey()

    def _report(self, moved: bool, force: bool = False) -> None:
        """Tell the launcher where this host stands, now and then."""
        now = time.monotonic()
        since = now - self._reported
        if (not force and since < (SHORT if moved else LONG)) or self.control.stuffed:
            return
        gauges: dict[str, float] = {}
        if (force or now - self._read >= LONG) and hasattr(self, "host"):
            gauges = self.meter.read() | {name: float(x) for name, x in self.host.gauges().items()}
            self._read = now
            for name in self.host.roles:
                edges = [edge.ledger for edge in self.serving.values() if edge.ledger is not None]
                gauges[f"role/{name}/queue"] = sum(ledger.letters() for ledger in edges)
                gauges[f"role/{name}/queue_bytes"] = sum(ledger.bytes() for ledger in edges)
        notes = self.host.notes() if hasattr(self, "host") else []
        self._say("report", self._moved, self.sheet.read(), gauges, notes)
        self._reported, self._moved = now, 0

    def _say(self, what: str, *rest: Any, fds: tuple[int, ...] = ()) -> None:  # noqa: ANN401
        self.control.send(pack((what, *rest)).meta, fds)

    def _fail(self, error: Exception) -> None:
        node, doing = self._at
        hurry = threading.Timer(CLOSING, os._exit, (1,))  # a broken role may not even close
        hurry.daemon = True
        hurry.start()
        kind = type(error).__name__
        mine = isinstance(error, TroopError)
        text = "".join(traceback.format_exception(error))[-20_000:]
        reason = str(error) if mine else (str(error).strip().splitlines() or [""])[0]
        self._say("failed", node, f"{doing}()" if doing.isidentifier() else doing, kind, reason, mine, text)
        self.close()

    def close(self) -> None:
        """Close the roles, whatever they say about it, and see that the last words leave."""
        if hasattr(self, "host"):
            for name, role in self.host.roles.items():
                try:
                    if hasattr(role, "close"):
                        role.close()
                except Exception as error:
                    self._say("note", f"{name} could not be closed: {type(error).__name__}: {error}")
        deadline = time.monotonic() + 2
        while self.control.stuffed and time.monotonic() < deadline:
            self.control.flush()
            time.sleep(0.01)
