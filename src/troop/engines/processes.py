"""Processes: one process per host, on one machine; supervised."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any, Literal

from troop.core.config import ranged
from troop.core.engine import Counters, Keeper, Result, Saved, Until, Watch
from troop.core.errors import SetupProblem
from troop.core.program import Program, Schedule
from troop.core.role import Metrics
from troop.engines.crew import Crew, Member
from troop.engines.inline import Due
from troop.engines.machine import cores
from troop.engines.shared import opened
from troop.engines.supervisor import Limits, OverBudget, Supervisor
from troop.engines.tally import Tally


@dataclass(frozen=True)
class Processes:
    """Each host is a process of its own: roles run side by side, and one that dies is brought back."""

    threads: int = ranged(0, low=0, high=1024)
    """CPU threads of each host; 0 shares the cores among the hosts that step."""
    log_s: float = ranged(1.0, above=0)
    """Seconds between lines of metrics."""
    checkpoint_s: float = ranged(120.0, above=0)
    """Training seconds between checkpoints; there is always one at the end."""
    restarts: int = ranged(5, low=0, high=10_000)
    """How often one host may die within ten minutes before the run ends."""
    step_limit_s: float = ranged(300.0, above=0)
    """Seconds after which a role that does not come back from a step is replaced."""
    start_limit_s: float = ranged(300.0, above=0)
    """Seconds a host may take to build its roles."""
    stop_limit_s: float = ranged(20.0, above=0)
    """Seconds in which all hosts finish their step when the run ends, and again to close their roles."""
    mailbox_mb: float = ranged(32.0, above=0)
    """Megabytes that one host may have sent to another without their being taken; then it waits."""
    start: Literal["spawn", "forkserver"] = "forkserver"
    """forkserver imports torch once for all hosts, spawn once for each."""

    def run(
        self, program: Program, until: Until, seed: int, watch: Watch, saved: Saved | None = None
    ) -> Result:
        """All hosts at once until done; a checkpoint and an evaluation at the end."""
        if sys.platform != "linux":
            raise SetupProblem("The processes engine needs Linux; use --engine inline here.")
        crew = Crew(program, seed, self.start, int(self.mailbox_mb * 2**20), 3 * self.step_limit_s)
        self._share_cores(crew)
        loop = Loop(self, crew, Tally(saved.counters if saved else Counters()), until, watch)
        try:
            return loop.run(saved)
        finally:
            for name in crew.end(self.stop_limit_s, [loop.host[name] for name in loop.evaluating]):
                watch.note(f"{name} did not end within {self.stop_limit_s:.0f} s and was killed")

    def _share_cores(self, crew: Crew) -> None:
        stepping = [member for member in crew.members.values() if _may_step(member)]
        for member in crew.members.values():
            wanted = max((node.threads or 0 for node in member.nodes), default=0)
            member.threads = wanted or self.threads or max(1, cores() // max(1, len(stepping)))


def _may_step(member: Member) -> bool:
    return any(node.schedule is None and hasattr(node.build.make, "step") for node in member.nodes)


class Loop:
    """The launcher's side of one run: counts, logs, evaluates, saves, ends."""

    def __init__(self, engine: Processes, crew: Crew, tally: Tally, until: Until, watch: Watch) -> None:
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
        self.gauges: dict[str, float] = {}
        self.late: list[str] = []  # hosts that did not pause when they were asked to
        self.counted = 0  # restarts in the tally
        self.logged = time.monotonic()

    def _restore(self, nodes: list[str]) -> dict[str, Any] | None:
        """The newest saved parts of these nodes, if whoever looks on can give them back."""
        return self.watch.restore(nodes) if isinstance(self.watch, Keeper) else None

    def run(self, saved: Saved | None) -> Result:
        """Until steps, minutes or target are reached, or a stop is asked."""
        self.supervisor.start(lambda member: _parts(saved.state, member) if saved else None)
        if saved is not None:
            saved.state.clear()  # a second copy of the replay is not to be kept
        else:
            self.save(last=True)  # from now on, whatever happens, there is something to resume
        self.tally.evaluated()
        self.supervisor.go()
        try:
            while not self.tally.reached(self.until):
                if self.watch.stop_asked():
                    self.stop()
                    self.save(last=True)
                    return Result("stopped", self.tally.counters(), self.evaluation)
                self.round()
        except OverBudget:
            self.stop()
            self.save(last=True)
            raise
        self.stop()
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
            if due():
                self.evaluate(name)
        if self.saving():
            self.stop()
            self.save(last=False)
        idle = time.monotonic() - self.supervisor.moved
        if idle > self.engine.step_limit_s and not self.evaluating:
            raise RuntimeError(
                f"every role waits for another, {idle:.0f} s by now: a bug in this system's wiring"
            )

    def collect(self) -> None:
        """Put what hosts reported where it belongs."""
        for metrics, gauges in self.supervisor.reports:
            self.tally.add(dict(metrics))
            self.gauges |= gauges
        self.supervisor.reports.clear()
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
        self.watch.log(self.tally.counters(), self.tally.means() | self.gauges)
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
            if not member.saves or busy:
                continue
            found = self._state_of(member)
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
            found: dict[str, Any] = opened(fd)
            return found
        return self._restore([node.name for node in member.nodes])


def _parts(state: dict[str, Any], member: Member) -> dict[str, Any]:
    """What of a checkpoint belongs to a host."""
    names = tuple(f"{node.name}." for node in member.nodes)
    rng = state.get("rng", {})
    return {key: part for key, part in state.items() if key.startswith(names)} | {
        "rng": rng.get(member.name, {})
    }
