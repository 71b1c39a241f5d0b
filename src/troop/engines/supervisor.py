"""Supervisor: brings back what dies, within a budget, and knows who is to blame."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from troop.core import errors
from troop.core.errors import TrainingFault, TroopError
from troop.engines.processes.pool import Member, Message

WINDOW = 600.0  # seconds within which the deaths of one host are counted together
EVALUATION = 4.0  # times longer than others may a host with scheduled roles be silent
GRACE = 2.0  # seconds for those who may wait for a host that will not come back
LONGEST_PAUSE = 5.0  # seconds before a host that keeps dying is started again


@dataclass(frozen=True)
class Limits:
    """When the supervisor loses patience."""

    restarts: int
    step_s: float
    start_s: float


@dataclass(frozen=True)
class Failure:
    """Why a host ended."""

    node: str
    what: str  # one line
    trace: str = ""
    error: TroopError | None = None  # said by the role itself, in words for the user


class Staff(Protocol):
    """Starts, wires, hears and ends hosts, wherever they live."""

    members: dict[str, Member]
    later: frozenset[str]
    """Names of those without whom a run can begin, as starting all at once would take long."""

    def spawn(self, member: Member) -> None:
        """A new life for the host; it waits for `begin` before it serves."""
        ...

    def wire(self, member: Member) -> None:
        """New edges between the host and all living hosts that it asks or that ask it."""
        ...

    def wire_all(self) -> None:
        """Every edge of the program, once."""
        ...

    def begin(self, member: Member, state: dict[str, Any] | None, restored: bool) -> None:
        """Let the host take back its state, if any, and serve."""
        ...

    def hear(self, seconds: float, hear: Callable[[Member, Message, list[Any]], None]) -> list[Member]:
        """Pass on what hosts say within this time; returns those who have died."""
        ...

    def opened(self, given: Any) -> dict[str, Any]:  # noqa: ANN401
        """The state that came with what a host said."""
        ...

    def stack(self, member: Member, ask: bool = False) -> str:
        """What is known of the host's stack; with `ask`, of this moment."""
        ...

    def bury(self, member: Member) -> str:
        """Make sure that nothing is left of the host; how it ended."""
        ...


class OverBudget(TrainingFault):
    """A host died too often."""


class Supervisor:
    """Hears the crew, restarts its members, and keeps their answers until they are asked for."""

    def __init__(
        self,
        crew: Staff,
        limits: Limits,
        restore: Callable[[list[str]], dict[str, Any] | None],
        note: Callable[[str], None],
    ) -> None:
        self.crew, self.limits, self._restore, self._note = crew, limits, restore, note
        self.members = crew.members
        self.reports: list[tuple[str, dict[str, float], dict[str, float]]] = []  # host, metrics, gauges
        self.replies: dict[tuple[str, str], Any] = {}
        self.stepped: list[tuple[str, dict[str, float] | None]] = []
        self.restarts = 0
        self.holding = True
        self.moved = time.monotonic()
        self._failures: dict[str, Failure] = {}
        self._deaths: dict[str, list[tuple[float, Failure]]] = {name: [] for name in crew.members}
        self._again: dict[str, float] = {}  # when a dead member is started again
        self._started: set[str] = set()
        self._begun = self._resigned = False

    def start(self, parts: Callable[[Member], dict[str, Any] | None]) -> None:
        """All members, those who can wait last; returns when the others are ready."""
        later = [member for member in self.members.values() if member.name in self.crew.later]
        first = [member for member in self.members.values() if member not in later]
        for member in first:
            self.crew.spawn(member)
        self.crew.wire_all()
        for member in first:
            self.crew.begin(member, parts(member), restored=False)
        while not all(member.ready for member in first):
            self.attend(0.1)
        for member in later:
            self.crew.spawn(member)
            self.crew.wire(member)
            self.crew.begin(member, parts(member), restored=False)

    @property
    def unheard(self) -> set[str]:
        """Hosts that were never ready."""
        return set(self.members) - self._started

    @property
    def starting(self) -> bool:
        """Whether a host is on its way."""
        return any(member.alive and not member.ready for member in self.members.values())

    def go(self) -> None:
        """Let active roles step."""
        self.holding, self.moved, self._begun = False, time.monotonic(), True
        for member in self.members.values():
            if member.ready:  # others are told when they are
                member.say("go")

    def resign(self) -> None:
        """From now on the dead stay dead: the run is about to end, and others may be saved."""
        self._resigned = True
        self._again.clear()

    def hold(self, seconds: float) -> list[str]:
        """Active roles finish their step and pause; names of those that did not within this time."""
        self.holding = True
        # Passive hosts are asked too, for the sake of their last report; an evaluator may take its time.
        active = [m for m in self.members.values() if m.ready and (m.active or not m.scheduled)]
        for member in active:
            self.replies.pop((member.name, "held"), None)
            member.say("hold")
        doomed = self._doomed()
        late = self.gather("held", [m for m in active if m.name not in doomed], seconds)
        return late + self.gather("held", [m for m in active if m.name in doomed], min(seconds, GRACE))

    def _doomed(self) -> set[str]:
        """Hosts that may wait for one that will not come back."""
        doomed = {name for name, member in self.members.items() if not member.alive} - set(self._again)
        for name, member in self.members.items():  # callees come first
            if doomed & set(member.holds.values()):
                doomed.add(name)
        return doomed

    def gather(self, what: str, asked: Iterable[Member], seconds: float) -> list[str]:
        """Wait until all asked have replied or died; names of those alive that did not reply in time."""
        waiting = {member.name: member.spawned for member in asked}
        deadline = time.monotonic() + seconds
        while waiting and time.monotonic() < deadline:
            self.attend(0.05)
            for name, spawned in list(waiting.items()):
                gone = not self.members[name].alive or self.members[name].spawned != spawned
                if gone or (name, what) in self.replies:
                    del waiting[name]
        return list(waiting)

    def attend(self, seconds: float) -> None:
        """Hear everyone for this long; deal with deaths, time-outs and restarts that are due."""
        for member in self.crew.hear(self._at_most(seconds), self._hear):
            self._died(member)
        now = time.monotonic()
        for name, when in list(self._again.items()):
            if when <= now:
                del self._again[name]
                self._revive(self.members[name])
        for member in self.members.values():
            limit = self.limits.step_s if member.ready else self.limits.start_s
            if member.scheduled:
                limit *= EVALUATION  # a step of an evaluator is many episodes
            if member.alive and now - member.heard > limit:
                self._stuck(member, limit)

    def _at_most(self, seconds: float) -> float:
        soonest = min(self._again.values(), default=None)
        return seconds if soonest is None else max(0.0, min(seconds, soonest - time.monotonic()))

    def _hear(self, member: Member, message: Message, attached: list[Any]) -> None:
        what, *rest = message
        if what == "report":
            moved, metrics, gauges, notes = rest
            self.moved = time.monotonic() if moved else self.moved
            self.reports.append((member.name, metrics, gauges))
            for text in notes:
                self._note(text)
        elif what == "ready":
            member.saves, member.restores, member.active, notes = rest
            member.ready = True
            self._started.add(member.name)
            for text in notes:
                self._note(text)
            if not self.holding:
                member.say("go")
        elif what == "failed":
            node, doing, kind, text, mine, trace = rest
            error = getattr(errors, kind, TrainingFault)(text) if mine else None
            self._failures[member.name] = Failure(node, f"{kind}: {text} (in {doing})", trace, error)
        elif what == "stepped":
            self.stepped.append((rest[0], rest[1]))
        elif what == "note":
            self._note(rest[0])
        else:
            self.replies[(member.name, what)] = attached[0] if attached else None

    def _stuck(self, member: Member, limit: float) -> None:
        """Ask for its stack, then end it."""
        node = member.nodes[0].name
        doing = "in step() or a method" if member.ready else "while being built"
        stack = self.crew.stack(member, ask=True)
        self._failures[member.name] = Failure(node, f"no sign of life for {limit:.0f} s ({doing})", stack)
        self._died(member)

    def _died(self, member: Member) -> None:
        trace = self.crew.stack(member)
        ended = self.crew.bury(member)
        failure = self._failures.pop(member.name, None)
        if failure is None:
            failure = Failure(member.nodes[0].name, ended, trace)
        if self._resigned:
            return
        if failure.error is not None:
            raise failure.error
        if failure.trace:
            self._note(f"{failure.node} died, {failure.what}; its last words:\n{failure.trace.rstrip()}")
        if member.name not in self._started and not self._begun:
            fault = TrainingFault(f"{failure.node} could not be started: {failure.what}.")
            fault.trace = failure.trace
            raise fault
        now = time.monotonic()
        deaths = self._deaths[member.name]
        deaths[:] = [(when, why) for when, why in deaths if now - when < WINDOW] + [(now, failure)]
        if len(deaths) > self.limits.restarts:
            first = deaths[0][1]
            often = "once" if len(deaths) == 1 else f"{len(deaths)} times"
            over = OverBudget(
                f"{failure.node} died {often} within {WINDOW / 60:.0f} minutes, more than --engine.restarts "
                f"allows; the first time: {first.what}."
            )
            over.trace = first.trace
            raise over
        pause = min(LONGEST_PAUSE, 0.1 * 2 ** (len(deaths) - 1))
        self._again[member.name] = now + pause
        self._note(f"{failure.node} died ({failure.what}); restart {len(deaths)} of {self.limits.restarts}")

    def _revive(self, member: Member) -> None:
        """A new process in the place of the old: edges anew, state from the newest checkpoint."""
        self.restarts += 1
        self.moved = time.monotonic()
        self.crew.spawn(member)
        self.crew.wire(member)
        restores = member.restores or member.name not in self._started
        state = self._restore([node.name for node in member.nodes]) if restores else None
        self.crew.begin(member, state or None, restored=True)
