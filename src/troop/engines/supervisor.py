"""Supervisor: brings back what dies, within a budget, and knows who is to blame."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from troop.core import errors
from troop.core.errors import TrainingFault, TroopError
from troop.engines.pool import ControlMessage, HostHandle, HostPool

RESTART_WINDOW_S = 600.0  # seconds within which the deaths of one host are counted together
SCHEDULED_FACTOR = 4.0  # times longer than others may a host with scheduled roles be silent
BLOCKED_GRACE_S = 2.0  # seconds for those who may wait for a host that will not come back
MAX_RESTART_DELAY_S = 5.0  # seconds before a host that keeps dying is started again


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


class RestartBudgetExceeded(TrainingFault):
    """A host died too often."""


class Supervisor:
    """Hears the crew, restarts its members, and keeps their answers until they are asked for."""

    def __init__(
        self,
        pool: HostPool,
        limits: Limits,
        restore: Callable[[list[str]], dict[str, Any] | None],
        note: Callable[[str], None],
    ) -> None:
        self.pool, self.limits, self._restore, self._note = pool, limits, restore, note
        self.hosts = pool.hosts
        self.reports: list[tuple[str, dict[str, float], dict[str, float]]] = []  # host, metrics, gauges
        self.replies: dict[tuple[str, str], Any] = {}
        self.stepped: list[tuple[str, dict[str, float] | None]] = []
        self.restarts = 0
        self.paused = True
        self.moved = time.monotonic()
        self._failures: dict[str, Failure] = {}
        self._deaths: dict[str, list[tuple[float, Failure]]] = {name: [] for name in pool.hosts}
        self._again: dict[str, float] = {}  # when a dead member is started again
        self._started: set[str] = set()
        self._begun = self._stop_restarts = False

    def start(self, parts: Callable[[HostHandle], dict[str, Any] | None]) -> None:
        """All members, those who can wait last; returns when the others are ready."""
        deferred = [host for host in self.hosts.values() if host.name in self.pool.deferred]
        first = [host for host in self.hosts.values() if host not in deferred]
        for host in first:
            self.pool.spawn(host)
        self.pool.connect_all()
        for host in first:
            self.pool.start(host, parts(host), restored=False)
        while not all(host.ready for host in first):
            self.poll(0.1)
        for host in deferred:
            self.pool.spawn(host)
            self.pool.connect(host)
            self.pool.start(host, parts(host), restored=False)

    @property
    def never_ready(self) -> set[str]:
        """Hosts that were never ready."""
        return set(self.hosts) - self._started

    @property
    def starting(self) -> bool:
        """Whether a host is on its way."""
        return any(host.alive and not host.ready for host in self.hosts.values())

    def resume(self) -> None:
        """Let active roles step."""
        self.paused, self.moved, self._begun = False, time.monotonic(), True
        for host in self.hosts.values():
            if host.ready:  # others are told when they are
                host.send("resume")

    def stop_restarting(self) -> None:
        """From now on the dead stay dead: the run is about to end, and others may be saved."""
        self._stop_restarts = True
        self._again.clear()

    def pause(self, seconds: float) -> list[str]:
        """Active roles finish their step and pause; names of those that did not within this time."""
        self.paused = True
        # Passive hosts are asked too, for the sake of their last report; an evaluator may take its time.
        active = [m for m in self.hosts.values() if m.ready and (m.active or not m.scheduled)]
        for host in active:
            self.replies.pop((host.name, "paused"), None)
            host.send("pause")
        doomed = self._doomed()
        late = self.wait_replies("paused", [m for m in active if m.name not in doomed], seconds)
        return late + self.wait_replies(
            "paused", [m for m in active if m.name in doomed], min(seconds, BLOCKED_GRACE_S)
        )

    def _doomed(self) -> set[str]:
        """Hosts that may wait for one that will not come back."""
        doomed = {name for name, host in self.hosts.items() if not host.alive} - set(self._again)
        for name, host in self.hosts.items():  # callees come first
            if doomed & set(host.servers.values()):
                doomed.add(name)
        return doomed

    def wait_replies(self, what: str, asked: Iterable[HostHandle], seconds: float) -> list[str]:
        """Wait until all asked have replied or died; names of those alive that did not reply in time."""
        waiting = {host.name: host.spawned for host in asked}
        deadline = time.monotonic() + seconds
        while waiting and time.monotonic() < deadline:
            self.poll(0.05)
            for name, spawned in list(waiting.items()):
                gone = not self.hosts[name].alive or self.hosts[name].spawned != spawned
                if gone or (name, what) in self.replies:
                    del waiting[name]
        return list(waiting)

    def poll(self, seconds: float) -> None:
        """Hear everyone for this long; deal with deaths, time-outs and restarts that are due."""
        for host in self.pool.poll(self._poll_timeout(seconds), self._on_control):
            self._died(host)
        now = time.monotonic()
        for name, when in list(self._again.items()):
            if when <= now:
                del self._again[name]
                self._revive(self.hosts[name])
        for host in self.hosts.values():
            limit = self.limits.step_s if host.ready else self.limits.start_s
            if host.scheduled:
                limit *= SCHEDULED_FACTOR  # a step of an evaluator is many episodes
            if host.alive and now - host.last_message > limit:
                self._stuck(host, limit)

    def _poll_timeout(self, seconds: float) -> float:
        soonest = min(self._again.values(), default=None)
        return seconds if soonest is None else max(0.0, min(seconds, soonest - time.monotonic()))

    def _on_control(self, host: HostHandle, message: ControlMessage, attached: list[Any]) -> None:
        what, *rest = message
        if what == "report":
            moved, metrics, gauges, notes = rest
            self.moved = time.monotonic() if moved else self.moved
            self.reports.append((host.name, metrics, gauges))
            for text in notes:
                self._note(text)
        elif what == "ready":
            host.saves_state, host.restores_state, host.active, notes = rest
            host.ready = True
            self._started.add(host.name)
            for text in notes:
                self._note(text)
            if not self.paused:
                host.send("resume")
        elif what == "failed":
            node, doing, kind, text, mine, trace = rest
            error = getattr(errors, kind, TrainingFault)(text) if mine else None
            self._failures[host.name] = Failure(node, f"{kind}: {text} (in {doing})", trace, error)
        elif what == "stepped":
            self.stepped.append((rest[0], rest[1]))
        elif what == "note":
            self._note(rest[0])
        else:
            self.replies[(host.name, what)] = attached[0] if attached else None

    def _stuck(self, host: HostHandle, limit: float) -> None:
        """Ask for its stack, then end it."""
        node = host.nodes[0].name
        doing = "in step() or a method" if host.ready else "while being built"
        stack = self.pool.stack_trace(host, request=True)
        self._failures[host.name] = Failure(node, f"no sign of life for {limit:.0f} s ({doing})", stack)
        self._died(host)

    def _died(self, host: HostHandle) -> None:
        trace = self.pool.stack_trace(host)
        ended = self.pool.reap(host)
        failure = self._failures.pop(host.name, None)
        if failure is None:
            failure = Failure(host.nodes[0].name, ended, trace)
        if self._stop_restarts:
            return
        if failure.error is not None:
            raise failure.error
        if failure.trace:
            self._note(f"{failure.node} died, {failure.what}; its last words:\n{failure.trace.rstrip()}")
        if host.name not in self._started and not self._begun:
            fault = TrainingFault(f"{failure.node} could not be started: {failure.what}.")
            fault.trace = failure.trace
            raise fault
        now = time.monotonic()
        deaths = self._deaths[host.name]
        deaths[:] = [(when, why) for when, why in deaths if now - when < RESTART_WINDOW_S] + [(now, failure)]
        if len(deaths) > self.limits.restarts:
            first = deaths[0][1]
            often = "once" if len(deaths) == 1 else f"{len(deaths)} times"
            over = RestartBudgetExceeded(
                f"{failure.node} died {often} within {RESTART_WINDOW_S / 60:.0f} minutes, more than --engine.restarts "
                f"allows; the first time: {first.what}."
            )
            over.trace = first.trace
            raise over
        pause = min(MAX_RESTART_DELAY_S, 0.1 * 2 ** (len(deaths) - 1))
        self._again[host.name] = now + pause
        self._note(f"{failure.node} died ({failure.what}); restart {len(deaths)} of {self.limits.restarts}")

    def _revive(self, host: HostHandle) -> None:
        """A new process in the place of the old: edges anew, state from the newest checkpoint."""
        self.restarts += 1
        self.moved = time.monotonic()
        self.pool.spawn(host)
        self.pool.connect(host)
        restores = host.restores_state or host.name not in self._started
        state = self._restore([node.name for node in host.nodes]) if restores else None
        self.pool.start(host, state or None, restored=True)
