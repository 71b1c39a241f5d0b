"""Loop: the launcher's side of a run on many hosts, wherever they live."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from troop.core.engine import Checkpoint, CheckpointSource, Result, RunObserver, Until
from troop.core.program import Schedule
from troop.core.role import Metrics
from troop.engines.inline import Due
from troop.engines.metrics import Tally
from troop.engines.processes.pool import Member
from troop.engines.runtime import cores
from troop.engines.supervisor import Limits, OverBudget, Staff, Supervisor


class Pace(Protocol):
    """How often and how long, as the engine's config says."""

    @property
    def log_s(self) -> float:
        """Seconds between lines of metrics."""
        ...

    @property
    def checkpoint_s(self) -> float:
        """Training seconds between checkpoints."""
        ...

    @property
    def restarts(self) -> int:
        """How often one host may die."""
        ...

    @property
    def step_limit_s(self) -> float:
        """Seconds a step may take."""
        ...

    @property
    def start_limit_s(self) -> float:
        """Seconds a host may take to build its roles."""
        ...

    @property
    def stop_limit_s(self) -> float:
        """Seconds in which all hosts finish their step."""
        ...


def share_cores(members: Mapping[str, Member], threads: int) -> None:
    """Give each host the threads its nodes want, else `threads`, else a fair share of this machine."""
    stepping = [member for member in members.values() if may_step(member)]
    for member in members.values():
        wanted = max((node.threads or 0 for node in member.nodes), default=0)
        member.threads = wanted or threads or max(1, cores() // max(1, len(stepping)))


def may_step(member: Member) -> bool:
    """Whether a role of the host steps all the time."""
    return any(node.schedule is None and hasattr(node.build.make, "step") for node in member.nodes)


class Loop:
    """The launcher's side of one run: counts, logs, evaluates, saves, ends."""

    def __init__(self, engine: Pace, crew: Staff, tally: Tally, until: Until, watch: RunObserver) -> None:
        self.engine, self.tally, self.until, self.watch = engine, tally, until, watch
        limits = Limits(engine.restarts, engine.step_limit_s, engine.start_limit_s)
        self.supervisor = Supervisor(crew, limits, self._restore, watch.note)
        self.members = crew.members
        self.saving = Due(Schedule(seconds=engine.checkpoint_s), tally)
        self.due = {
            node.name: Due(node.schedule, tally)
            for member in crew.members.values()
            for node in member.nodes
            if node.schedule is not None
        }
        self.host = {node.name: member for member in crew.members.values() for node in member.nodes}
        self.evaluating: dict[str, float] = {}  # node -> which process of its host was asked
        self.evaluation: Metrics = {}
        self.gauges: dict[str, dict[str, float]] = {}  # of each host, as last read
        self.late: list[str] = []  # hosts that did not pause when they were asked to
        self.counted = 0  # restarts in the tally
        self.resumed = False
        self.logged = time.monotonic()

    def _restore(self, nodes: list[str]) -> dict[str, Any] | None:
        """The newest saved parts of these nodes, if whoever looks on can give them back."""
        return self.watch.restore(nodes) if isinstance(self.watch, CheckpointSource) else None

    def run(self, saved: Checkpoint | None) -> Result:
        """Until steps, minutes or target are reached, or a stop is asked."""
        self.resumed = saved is not None
        self.supervisor.start(lambda member: _parts(saved.state, member) if saved else None)
        if saved is not None:
            saved.state.clear()  # a second copy of the replay is not to be kept
        else:
            self.save(last=True)  # from now on, whatever happens, there is something to resume
        self.tally.evaluated()
        self.supervisor.go()
        try:
            return self._until_done()
        except OverBudget:
            self.supervisor.resign()
            self.stop()
            self.save(last=True)
            raise

    def _until_done(self) -> Result:
        while not self.tally.reached(self.until):
            if self.watch.stop_asked():
                self.stop()
                self.save(last=True)
                return Result("stopped", self.tally.counters(), self.evaluation)
            self.round()
        self.stop()
        while self.supervisor.starting and not self.watch.stop_asked():
            self.supervisor.attend(0.05)  # who came too late is in the checkpoint too
        if not self.tally.hit:
            self.evaluate_last()
        self.log()
        self.save(last=True)
        return Result("done", self.tally.counters(), self.evaluation)

    def round(self) -> None:
        """Hear the hosts for a moment, then whatever is due."""
        self.supervisor.attend(0.05)
        self.collect()
        self.tally.trained()
        if time.monotonic() - self.logged >= self.engine.log_s:
            self.log()
        for name, due in self.due.items():
            if self.host[name].ready and due():
                self.evaluate(name)
        if self.saving():
            self.stop()
            self.save(last=False)
        idle = time.monotonic() - self.supervisor.moved
        if idle > self.engine.step_limit_s and not self.evaluating and not self.supervisor.starting:
            raise RuntimeError(
                f"every role waits for another, {idle:.0f} s by now: a bug in this system's wiring"
            )

    def collect(self) -> None:
        """Put what hosts reported where it belongs."""
        for host, metrics, gauges in self.supervisor.reports:
            self.tally.add(dict(metrics))
            self.gauges[host] = self.gauges.get(host, {}) | gauges
        self.supervisor.reports.clear()
        for host, member in self.members.items():
            if not member.ready:  # what it was before it died is of no interest
                self.gauges.pop(host, None)
        if (new := self.supervisor.restarts - self.counted) > 0:
            self.tally.add({"count/restarts": new})
            self.counted += new
        for name, judged in self.supervisor.stepped:
            self.evaluating.pop(name, None)
            if judged is not None:
                self.evaluation = dict(judged)
                self.tally.judge(judged["eval/return_mean"], self.until)
                self.watch.evaluated(self.tally.counters(), judged)
        self.supervisor.stepped.clear()
        for name, spawned in list(self.evaluating.items()):
            if self.host[name].spawned != spawned:  # died over it
                del self.evaluating[name]

    def evaluate(self, name: str) -> None:
        """Let a scheduled role step, while all others go on; not if it still does."""
        if name not in self.evaluating and self.host[name].ready:
            self.evaluating[name] = self.host[name].spawned
            self.host[name].say("step", name)

    def evaluate_last(self) -> None:
        """The final evaluation, of what was learned in the end."""
        for name in self.due:
            self._await_evaluations()
            self.evaluate(name)
            self._await_evaluations()
        self.tally.evaluated()

    def _await_evaluations(self) -> None:
        while self.evaluating:
            self.supervisor.attend(0.05)
            self.collect()
            if self.watch.stop_asked():
                return

    def log(self) -> None:
        """A line of everything since the last."""
        read = {name: value for gauges in self.gauges.values() for name, value in gauges.items()}
        self.watch.log(self.tally.counters(), self.tally.means() | read)
        self.logged = time.monotonic()

    def stop(self) -> None:
        """All active roles pause at the end of their step."""
        self.late = self.supervisor.hold(self.engine.stop_limit_s)
        for name in self.late:
            self.watch.note(f"{name} did not finish its step in time; what was last saved of it stands")
        self.collect()
        self.tally.trained()

    def save(self, last: bool) -> None:
        """A checkpoint of all hosts at a pause; only the copying is waited for, not the disk."""
        state = self._state()
        self.tally.evaluated()
        if not last:
            self.supervisor.go()
        if state is None:
            self.watch.note("no checkpoint this time: not every role gave its state; the one before stands")
        else:
            self.watch.save(self.tally.counters(), state, last)

    def _state(self) -> dict[str, Any] | None:
        """Askers first, so that what they have sent is in the stores' state; None if one is missing."""
        parts: dict[str, dict[str, Any]] = {}
        for member in reversed(self.members.values()):
            busy = any(node.name in self.evaluating for node in member.nodes)
            coming = self.resumed and member.name in self.supervisor.unheard  # with what was saved of it
            if busy or not (member.saves or coming):
                continue
            found = self._state_of(member)
            if coming and not found:
                continue  # it was not there either
            if found is None:
                return None
            parts[member.name] = found
        ordered = [parts[name] for name in self.members if name in parts]
        state = {
            key: part for found in ordered for key, part in found.items() if key not in ("policy", "rng")
        }
        policy: dict[str, Any] = next((found["policy"] for found in ordered if found.get("policy")), {})
        rng = {name: found["rng"] for name, found in parts.items() if found.get("rng")}
        return state | {"policy": policy, "rng": rng}

    def _state_of(self, member: Member) -> dict[str, Any] | None:
        """What the host gives, or what was saved of it if it is down."""
        if member.ready and member.name not in self.late:
            member.say("state")
            self.supervisor.gather("state", [member], self.engine.step_limit_s)
        fd = self.supervisor.replies.pop((member.name, "state"), None)
        if fd is not None:
            return self.supervisor.crew.opened(fd)
        return self._restore([node.name for node in member.nodes])


def _parts(state: dict[str, Any], member: Member) -> dict[str, Any] | None:
    """What of a checkpoint belongs to a host; None if it was not there yet when that was made."""
    names = tuple(f"{node.name}." for node in member.nodes)
    parts = {key: part for key, part in state.items() if key.startswith(names)}
    rng = state.get("rng", {}).get(member.name, {})
    return parts | {"rng": rng} if parts or rng else None
