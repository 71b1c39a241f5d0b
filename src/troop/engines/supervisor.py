"""Supervisor: restarts hosts that die or hang, within a budget, and reports which role failed and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from troop.core import errors
from troop.core.errors import TrainingFault, TroopError
from troop.engines.pool import ControlMessage, HostHandle, HostPool

RESTART_WINDOW_S = 600.0  # deaths of one host within this time count towards its restart budget
SCHEDULED_FACTOR = 4.0  # a host with scheduled roles may be silent this many times longer than others
BLOCKED_GRACE_S = 2.0  # a host that may be blocked on a host that will not restart has this long to pause
MAX_RESTART_DELAY_S = 5.0


@dataclass(frozen=True)
class Limits:
    """Restart budget and deadlines of every host."""

    restarts: int  # within RESTART_WINDOW_S
    step_s: float  # longest time without a message from a host that is ready
    start_s: float  # longest time until a host is ready


@dataclass(frozen=True)
class Failure:
    """Why a host died."""

    node: str
    reason: str  # one line
    trace: str = ""
    error: TroopError | None = None  # raised by the role itself; its message is meant for the user


class RestartBudgetExceeded(TrainingFault):
    """A host died more often than its restart budget allows."""


class Supervisor:
    """Polls a pool of hosts, restarts those that die and stores the replies of hosts until they are read."""

    def __init__(
        self,
        pool: HostPool,
        limits: Limits,
        restore: Callable[[list[str]], dict[str, Any] | None],
        note: Callable[[str], None],
        write_file: Callable[[str, str], None] = lambda name, text: None,
    ) -> None:
        self._write_file = write_file
        self.pool, self.limits, self._restore, self._note = pool, limits, restore, note
        self.hosts = pool.hosts
        self.reports: list[tuple[str, dict[str, float], dict[str, float]]] = []  # host, metrics, gauges
        self.replies: dict[tuple[str, str], Any] = {}  # (host, verb) -> what is attached to the reply
        self.step_results: list[tuple[str, dict[str, float] | None]] = []  # node, metrics of a requested step
        self.restarts = 0
        self.paused = True
        self.last_progress = time.monotonic()
        self._failures: dict[str, Failure] = {}  # reported by hosts that are about to exit
        self._deaths: dict[str, list[tuple[float, Failure]]] = {name: [] for name in pool.hosts}
        self._restart_at: dict[str, float] = {}  # when a dead host is started again
        self._ever_ready: set[str] = set()
        self._resumed = self._restarts_stopped = False
        self._pauses = 0  # so far; the members of a group agree on the number of a pause

    def start(
        self,
        state_of: Callable[[HostHandle], dict[str, Any] | None],
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Start all hosts, the deferred ones last; return True when the others are ready.

        Returns False if a stop is requested before. `state_of(host)` is the checkpointed state that the host
        loads, if any. Raises TrainingFault if a host that is not deferred cannot be started.
        """
        deferred = [host for host in self.hosts.values() if host.name in self.pool.deferred]
        first = [host for host in self.hosts.values() if host not in deferred]
        for host in first:
            self.pool.spawn(host)
        self.pool.connect_all()
        for host in first:
            self.pool.start(host, state_of(host), restored=False)
        while not all(host.ready for host in first):
            if stop_requested():
                return False
            self.poll(0.1)
        for host in deferred:
            self.pool.spawn(host)
            self.pool.connect(host)
            self.pool.start(host, state_of(host), restored=False)
        return True

    @property
    def never_ready(self) -> set[str]:
        """Names of hosts that have not been ready in this run."""
        return set(self.hosts) - self._ever_ready

    @property
    def starting(self) -> bool:
        """Whether a host has been spawned and is not ready yet."""
        return any(host.alive and not host.ready for host in self.hosts.values())

    def resume(self) -> None:
        """Let active roles step; hosts that become ready later are resumed then."""
        self.paused, self.last_progress, self._resumed = False, time.monotonic(), True
        for host in self.hosts.values():
            if all(member.ready for member in self._members(host)):
                host.send("resume", self._pauses)

    def _members(self, host: HostHandle) -> list[HostHandle]:
        """Return the hosts of its group, which start, pause and restart as one; `host` alone without one."""
        if not host.in_group:
            return [host]
        return [other for other in self.hosts.values() if other.group == host.group]

    def stop_restarting(self) -> None:
        """Stop restarting hosts that die, because the run is about to end."""
        self._restarts_stopped = True
        self._restart_at.clear()

    def pause(self, seconds: float) -> list[str]:
        """Let active roles finish their step and pause; return the hosts that have not paused in time."""
        self.paused = True
        self._pauses += 1
        # Passive hosts are paused too, so that they send their last report; evaluators continue.
        pausing = [host for host in self.hosts.values() if host.ready and (host.active or not host.scheduled)]
        # Members of a group pause at the end of a round, for which they may need data of other hosts.
        # A round of theirs may take longer than a step; one that hangs is found by its heartbeat.
        together = [host for host in pausing if host.in_group]
        late = self._request_pause(together, max(seconds, self.limits.step_s))
        return late + self._request_pause([host for host in pausing if not host.in_group], seconds)

    def _request_pause(self, pausing: list[HostHandle], seconds: float) -> list[str]:
        for host in pausing:
            self.replies.pop((host.name, "paused"), None)
            host.send("pause", self._pauses)
        blocked = self._blocked()
        free = [host for host in pausing if host.name not in blocked]
        late = self.wait_replies("paused", free, seconds)
        rest = [host for host in pausing if host.name in blocked]
        return late + self.wait_replies("paused", rest, min(seconds, BLOCKED_GRACE_S))

    def _blocked(self) -> set[str]:
        """Return hosts that may be blocked, directly or not, on a host that will not be restarted."""
        blocked = {name for name, host in self.hosts.items() if not host.alive} - set(self._restart_at)
        for name, host in self.hosts.items():  # servers come before their clients
            if blocked & set(host.servers.values()):
                blocked.add(name)
        return blocked

    def wait_replies(self, verb: str, hosts: Iterable[HostHandle], seconds: float) -> list[str]:
        """Wait until all hosts have replied or died; return those alive that have not replied in time."""
        waiting = {host.name: host.spawned for host in hosts}
        deadline = time.monotonic() + seconds
        while waiting and time.monotonic() < deadline:
            self.poll(0.05)
            for name, spawned in list(waiting.items()):
                died = not self.hosts[name].alive or self.hosts[name].spawned != spawned
                if died or (name, verb) in self.replies:
                    del waiting[name]
        return list(waiting)

    def poll(self, seconds: float) -> None:
        """Receive messages for up to `seconds`; handle deaths, expired deadlines and due restarts."""
        dead = self.pool.poll(self._poll_timeout(seconds), self._on_control)
        for host in sorted(dead, key=self._is_victim):
            if host.alive:  # otherwise it was reaped with another member of its group
                self._on_death(host)
        now = time.monotonic()
        for name, when in list(self._restart_at.items()):
            if when <= now and name in self._restart_at:  # which a restart of its group removes
                self._restart(self._members(self.hosts[name]))
        for host in self.hosts.values():
            limit = self.limits.step_s if host.ready else self.limits.start_s
            if host.scheduled:
                limit *= SCHEDULED_FACTOR  # one step of an evaluator is many episodes
            if host.alive and now - host.last_message > limit:
                self._on_timeout(host, limit)

    def _is_victim(self, host: HostHandle) -> bool:
        """Return whether the host died because another member of its group had died."""
        failure = self._failures.get(host.name)
        return failure is not None and failure.reason.startswith("GroupError")

    def _poll_timeout(self, seconds: float) -> float:
        soonest = min(self._restart_at.values(), default=None)
        return seconds if soonest is None else max(0.0, min(seconds, soonest - time.monotonic()))

    def _on_control(self, host: HostHandle, message: ControlMessage, attached: list[Any]) -> None:
        verb, *args = message
        if verb == "report":
            steps, metrics, gauges, notes = args
            self.last_progress = time.monotonic() if steps else self.last_progress
            self.reports.append((host.name, metrics, gauges))
            for text in notes:
                self._note(text)
        elif verb == "ready":
            host.saves_state, host.restores_state, host.active, notes = args
            host.ready = True
            self._ever_ready.add(host.name)
            for text in notes:
                self._note(text)
            if not self.paused and all(member.ready for member in self._members(host)):
                for member in self._members(host):
                    member.send("resume", self._pauses)
        elif verb == "failed":
            node, method, kind, text, for_user, trace = args
            error = getattr(errors, kind, TrainingFault)(text) if for_user else None
            self._failures[host.name] = Failure(node, f"{kind}: {text} (in {method})", trace, error)
        elif verb == "stepped":
            self.step_results.append((args[0], args[1]))
        elif verb == "note":
            self._note(args[0])
        elif verb == "file":
            self._write_file(*args)
        else:
            self.replies[(host.name, verb)] = attached[0] if attached else None

    def _on_timeout(self, host: HostHandle, limit: float) -> None:
        node = host.nodes[0].name
        activity = "in step() or a method" if host.ready else "while being built"
        trace = self.pool.stack_trace(host, request=True)
        self._failures[host.name] = Failure(node, f"no heartbeat for {limit:.0f} s ({activity})", trace)
        self._on_death(host)

    def _on_death(self, host: HostHandle) -> None:
        """Reap the host and schedule its restart; raise if the run cannot continue."""
        members = self._members(host)
        if self._is_victim(host):  # of a member that has reported its failure and not exited yet
            failed = [other for other in members if other.name in self._failures]
            host = min(failed, key=self._is_victim)
        trace = self.pool.stack_trace(host)
        exit_reason = self.pool.reap(host)
        for member in members:
            if member is not host:  # it waits for one that does not come
                self.pool.reap(member)
                self._failures.pop(member.name, None)
        failure = self._failures.pop(host.name, None)
        if failure is None:
            failure = Failure(host.nodes[0].name, exit_reason, trace)
        if self._restarts_stopped:
            return
        if failure.error is not None:
            raise failure.error
        if failure.trace:
            self._note(f"{failure.node} died, {failure.reason}; its stack trace:\n{failure.trace.rstrip()}")
        if host.name not in self._ever_ready and not self._resumed:
            fault = TrainingFault(f"{failure.node} could not be started: {failure.reason}.")
            fault.trace = failure.trace
            raise fault
        now = time.monotonic()
        deaths = self._deaths[members[0].name]  # a group has one budget
        deaths[:] = [(when, why) for when, why in deaths if now - when < RESTART_WINDOW_S] + [(now, failure)]
        if len(deaths) > self.limits.restarts:
            raise _budget_exceeded(failure.node, len(deaths), deaths[0][1])
        delay = min(MAX_RESTART_DELAY_S, 0.1 * 2 ** (len(deaths) - 1))
        self._restart_at |= dict.fromkeys((member.name for member in members), now + delay)
        others = f" with the {len(members) - 1} other members of {host.group}" if len(members) > 1 else ""
        self._note(
            f"{failure.node} died ({failure.reason}); restart {len(deaths)} of {self.limits.restarts}{others}"
        )

    def _restart(self, hosts: list[HostHandle]) -> None:
        """Spawn a host, or all hosts of a group, with new edges and their newest checkpointed state."""
        self.restarts += 1
        self.last_progress = time.monotonic()
        if self.pool.rendezvous is not None and hosts[0].in_group:
            self.pool.rendezvous.renew(hosts[0].group)
        for host in hosts:
            self._restart_at.pop(host.name, None)
            self.pool.spawn(host)
        for host in hosts:
            self.pool.connect(host)
            restores = host.restores_state or host.name not in self._ever_ready
            state = self._restore([node.name for node in host.nodes]) if restores else None
            self.pool.start(host, state or None, restored=True)


def _budget_exceeded(node: str, deaths: int, first: Failure) -> RestartBudgetExceeded:
    times = "once" if deaths == 1 else f"{deaths} times"
    error = RestartBudgetExceeded(
        f"{node} died {times} within {RESTART_WINDOW_S / 60:.0f} minutes, more often than --engine.restarts "
        f"allows; the first time: {first.reason}."
    )
    error.trace = first.trace
    return error
