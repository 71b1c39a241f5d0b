"""Loop: the launcher's side of a run on many hosts, wherever they live."""

from __future__ import annotations

import time
from typing import Any, Protocol

from troop.core.engine import Checkpoint, CheckpointSource, Result, RunObserver, Until
from troop.core.program import Schedule
from troop.core.role import Metrics
from troop.engines.pool import HostHandle, HostPool
from troop.engines.progress import RunProgress, ScheduleTimer
from troop.engines.supervisor import Limits, RestartBudgetExceeded, Supervisor


class DriverSettings(Protocol):
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


class Driver:
    """The launcher's side of one run: counts, logs, evaluates, saves, ends."""

    def __init__(
        self,
        engine: DriverSettings,
        pool: HostPool,
        progress: RunProgress,
        until: Until,
        observer: RunObserver,
    ) -> None:
        self.engine, self.progress, self.until, self.observer = engine, progress, until, observer
        limits = Limits(engine.restarts, engine.step_limit_s, engine.start_limit_s)
        self.supervisor = Supervisor(pool, limits, self._restore, observer.note)
        self.hosts = pool.hosts
        self.checkpoint_timer = ScheduleTimer(Schedule(seconds=engine.checkpoint_s), progress)
        self.timers = {
            node.name: ScheduleTimer(node.schedule, progress)
            for host in pool.hosts.values()
            for node in host.nodes
            if node.schedule is not None
        }
        self.host_of = {node.name: host for host in pool.hosts.values() for node in host.nodes}
        self.evaluating: dict[str, float] = {}  # node -> which process of its host was asked
        self.evaluation: Metrics = {}
        self.gauges: dict[str, dict[str, float]] = {}  # of each host, as last read
        self.late: list[str] = []  # hosts that did not pause when they were asked to
        self.counted = 0  # restarts in the tally
        self.resumed = False
        self.logged = time.monotonic()

    def _restore(self, nodes: list[str]) -> dict[str, Any] | None:
        """The newest saved parts of these nodes, if whoever looks on can give them back."""
        return self.observer.restore(nodes) if isinstance(self.observer, CheckpointSource) else None

    def run(self, checkpoint: Checkpoint | None) -> Result:
        """Until steps, minutes or target are reached, or a stop is asked."""
        self.resumed = checkpoint is not None
        self.supervisor.start(lambda host: _parts(checkpoint.state, host) if checkpoint else None)
        if checkpoint is not None:
            checkpoint.state.clear()  # a second copy of the replay is not to be kept
        else:
            self.save(last=True)  # from now on, whatever happens, there is something to resume
        self.progress.add_evaluation_time()
        self.supervisor.resume()
        try:
            return self._until_done()
        except RestartBudgetExceeded:
            self.supervisor.stop_restarting()
            self.pause()
            self.save(last=True)
            raise

    def _until_done(self) -> Result:
        while not self.progress.reached(self.until):
            if self.observer.stop_requested():
                self.pause()
                self.save(last=True)
                return Result("stopped", self.progress.counters(), self.evaluation)
            self.poll_once()
        self.pause()
        while self.supervisor.starting and not self.observer.stop_requested():
            self.supervisor.poll(0.05)  # who came too late is in the checkpoint too
        if not self.progress.target_reached:
            self.evaluate_last()
        self.log()
        self.save(last=True)
        return Result("done", self.progress.counters(), self.evaluation)

    def poll_once(self) -> None:
        """Hear the hosts for a moment, then whatever is due."""
        self.supervisor.poll(0.05)
        self.collect()
        self.progress.add_training_time()
        if time.monotonic() - self.logged >= self.engine.log_s:
            self.log()
        for name, timer in self.timers.items():
            if self.host_of[name].ready and timer.due():
                self.evaluate(name)
        if self.checkpoint_timer.due():
            self.pause()
            self.save(last=False)
        idle = time.monotonic() - self.supervisor.moved
        if idle > self.engine.step_limit_s and not self.evaluating and not self.supervisor.starting:
            raise RuntimeError(
                f"every role waits for another, {idle:.0f} s by now: a bug in this system's wiring"
            )

    def collect(self) -> None:
        """Put what hosts reported where it belongs."""
        for host_of, metrics, gauges in self.supervisor.reports:
            self.progress.add(dict(metrics))
            self.gauges[host_of] = self.gauges.get(host_of, {}) | gauges
        self.supervisor.reports.clear()
        for host_of, host in self.hosts.items():
            if not host.ready:  # what it was before it died is of no interest
                self.gauges.pop(host_of, None)
        if (new := self.supervisor.restarts - self.counted) > 0:
            self.progress.add({"count/restarts": new})
            self.counted += new
        for name, judged in self.supervisor.stepped:
            self.evaluating.pop(name, None)
            if judged is not None:
                self.evaluation = dict(judged)
                self.progress.add_evaluation(judged["eval/return_mean"], self.until)
                self.observer.evaluated(self.progress.counters(), judged)
        self.supervisor.stepped.clear()
        for name, spawned in list(self.evaluating.items()):
            if self.host_of[name].spawned != spawned:  # died over it
                del self.evaluating[name]

    def evaluate(self, name: str) -> None:
        """Let a scheduled role step, while all others go on; not if it still does."""
        if name not in self.evaluating and self.host_of[name].ready:
            self.evaluating[name] = self.host_of[name].spawned
            self.host_of[name].send("step", name)

    def evaluate_last(self) -> None:
        """The final evaluation, of what was learned in the end."""
        for name in self.timers:
            self._await_evaluations()
            self.evaluate(name)
            self._await_evaluations()
        self.progress.add_evaluation_time()

    def _await_evaluations(self) -> None:
        while self.evaluating:
            self.supervisor.poll(0.05)
            self.collect()
            if self.observer.stop_requested():
                return

    def log(self) -> None:
        """A line of everything since the last."""
        read = {name: value for gauges in self.gauges.values() for name, value in gauges.items()}
        self.observer.log(self.progress.counters(), self.progress.read_means() | read)
        self.logged = time.monotonic()

    def pause(self) -> None:
        """All active roles pause at the end of their step."""
        self.late = self.supervisor.pause(self.engine.stop_limit_s)
        for name in self.late:
            self.observer.note(f"{name} did not finish its step in time; what was last saved of it stands")
        self.collect()
        self.progress.add_training_time()

    def save(self, last: bool) -> None:
        """A checkpoint of all hosts at a pause; only the copying is waited for, not the disk."""
        state = self._state()
        self.progress.add_evaluation_time()
        if not last:
            self.supervisor.resume()
        if state is None:
            self.observer.note(
                "no checkpoint this time: not every role gave its state; the one before stands"
            )
        else:
            self.observer.save(self.progress.counters(), state, last)

    def _state(self) -> dict[str, Any] | None:
        """Askers first, so that what they have sent is in the stores' state; None if one is missing."""
        parts: dict[str, dict[str, Any]] = {}
        for host in reversed(self.hosts.values()):
            busy = any(node.name in self.evaluating for node in host.nodes)
            coming = self.resumed and host.name in self.supervisor.never_ready  # with what was saved of it
            if busy or not (host.saves_state or coming):
                continue
            found = self._state_of(host)
            if coming and not found:
                continue  # it was not there either
            if found is None:
                return None
            parts[host.name] = found
        ordered = [parts[name] for name in self.hosts if name in parts]
        state = {
            key: part for found in ordered for key, part in found.items() if key not in ("policy", "rng")
        }
        policy: dict[str, Any] = next((found["policy"] for found in ordered if found.get("policy")), {})
        rng = {name: found["rng"] for name, found in parts.items() if found.get("rng")}
        return state | {"policy": policy, "rng": rng}

    def _state_of(self, host: HostHandle) -> dict[str, Any] | None:
        """What the host gives, or what was saved of it if it is down."""
        if host.ready and host.name not in self.late:
            host.send("state")
            self.supervisor.wait_replies("state", [host], self.engine.step_limit_s)
        fd = self.supervisor.replies.pop((host.name, "state"), None)
        if fd is not None:
            return self.supervisor.pool.decode_state(fd)
        return self._restore([node.name for node in host.nodes])


def _parts(state: dict[str, Any], host: HostHandle) -> dict[str, Any] | None:
    """What of a checkpoint belongs to a host; None if it was not there yet when that was made."""
    names = tuple(f"{node.name}." for node in host.nodes)
    parts = {key: part for key, part in state.items() if key.startswith(names)}
    rng = state.get("rng", {}).get(host.name, {})
    return parts | {"rng": rng} if parts or rng else None
