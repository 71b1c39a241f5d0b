"""Driver: runs a program on a pool of hosts. It collects metrics, logs, evaluates, checkpoints and stops."""

from __future__ import annotations

import time
from typing import Any, Protocol

from troop.core.engine import Checkpoint, CheckpointSource, FileSink, Result, RunObserver, Until
from troop.core.program import Schedule
from troop.core.role import Metrics
from troop.engines.pool import HostHandle, HostPool
from troop.engines.progress import RunProgress, ScheduleTimer
from troop.engines.supervisor import Limits, RestartBudgetExceeded, Supervisor

POLL_S = 0.05  # the driver waits this long for messages before it checks timers and stop requests


class DriverSettings(Protocol):
    """Intervals and limits that the driver reads from an engine's config."""

    @property
    def log_s(self) -> float:
        """Seconds between lines of metrics."""
        ...

    @property
    def checkpoint_s(self) -> float:
        """Seconds of training between checkpoints."""
        ...

    @property
    def restarts(self) -> int:
        """Largest number of restarts of one host within the restart window."""
        ...

    @property
    def step_limit_s(self) -> float:
        """Seconds that a step may take."""
        ...

    @property
    def start_limit_s(self) -> float:
        """Seconds that a host may take to build its roles."""
        ...

    @property
    def stop_limit_s(self) -> float:
        """Seconds in which all hosts must finish their current step."""
        ...


class Driver:
    """Controls the hosts of one run: counts, logs, evaluates, makes checkpoints and ends the run."""

    def __init__(
        self,
        settings: DriverSettings,
        pool: HostPool,
        progress: RunProgress,
        until: Until,
        observer: RunObserver,
    ) -> None:
        self.settings, self.progress, self.until, self.observer = settings, progress, until, observer
        limits = Limits(settings.restarts, settings.step_limit_s, settings.start_limit_s)
        self.supervisor = Supervisor(pool, limits, self._restore, observer.note, self._write_file)
        self.hosts = pool.hosts
        self.checkpoint_timer = ScheduleTimer(Schedule(seconds=settings.checkpoint_s), progress)
        self.timers = {
            node.name: ScheduleTimer(node.schedule, progress)
            for host in pool.hosts.values()
            for node in host.nodes
            if node.schedule is not None
        }
        self.host_of = {node.name: host for host in pool.hosts.values() for node in host.nodes}
        self.evaluating: dict[str, float] = {}  # evaluating node -> `spawned` of its host at the request
        self.evaluation: Metrics = {}
        self.resumed = False
        self._gauges: dict[str, dict[str, float]] = {}  # newest gauges of each host
        self._unpaused: list[str] = []  # hosts that did not pause in time
        self._counted_restarts = 0
        self._last_log = time.monotonic()

    def _write_file(self, name: str, text: str) -> None:
        if isinstance(self.observer, FileSink):
            self.observer.write_file(name, text)

    def killable(self) -> list[HostHandle]:
        """Return the hosts that have nothing to save: those that evaluate or have never been ready."""
        evaluating = {self.host_of[node].name for node in self.evaluating}
        return [self.hosts[name] for name in evaluating | self.supervisor.never_ready]

    def _restore(self, nodes: list[str]) -> dict[str, Any] | None:
        """Return the entries of these nodes in the newest checkpoint, if the observer can provide them."""
        return self.observer.restore(nodes) if isinstance(self.observer, CheckpointSource) else None

    def run(self, checkpoint: Checkpoint | None) -> Result:
        """Run until a condition of `until` holds or a stop is requested.

        If a host exceeds its restart budget, the run ends with a checkpoint of the remaining hosts and the
        RestartBudgetExceeded is raised.
        """
        self.resumed = checkpoint is not None
        if not self.supervisor.start(
            lambda host: _host_state(checkpoint.state, host) if checkpoint else None,
            self.observer.stop_requested,
        ):
            return Result("stopped", self.progress.counters(), self.evaluation)
        if checkpoint is not None:
            checkpoint.state.clear()  # frees the memory of a second copy of the replay buffer
        else:
            self.save(last=True)  # so that the run can be resumed whatever happens next
        self.progress.add_evaluation_time()
        self.supervisor.resume()
        try:
            return self._run_until_done()
        except RestartBudgetExceeded:
            self.supervisor.stop_restarting()
            self.pause()
            self.save(last=True)
            raise

    def _run_until_done(self) -> Result:
        while not self.progress.reached(self.until):
            if self.observer.stop_requested():
                self.pause()
                self.save(last=True)
                return Result("stopped", self.progress.counters(), self.evaluation)
            self.poll_once()
        self.pause()
        while self.supervisor.starting and not self.observer.stop_requested():
            self.supervisor.poll(POLL_S)  # so that hosts that are still starting are in the checkpoint
        if not self.progress.target_reached:
            self.evaluate_last()
        self.log()
        self.save(last=True)
        return Result("done", self.progress.counters(), self.evaluation)

    def poll_once(self) -> None:
        """Receive messages for a moment, then log, evaluate and checkpoint if due."""
        self.supervisor.poll(POLL_S)
        self.collect()
        self.progress.add_training_time()
        if time.monotonic() - self._last_log >= self.settings.log_s:
            self.log()
        for name, timer in self.timers.items():
            if self.host_of[name].ready and timer.due():
                self.evaluate(name)
        if self.checkpoint_timer.due():
            self.pause()
            self.save(last=False)
        idle = time.monotonic() - self.supervisor.last_progress
        if idle > self.settings.step_limit_s and not self.evaluating and not self.supervisor.starting:
            raise RuntimeError(
                f"no role has made progress for {idle:.0f} s because every role waits for another: "
                "the wiring of this system is faulty"
            )

    def collect(self) -> None:
        """Add the reports, restarts and evaluations received by the supervisor to the run."""
        for name, metrics, gauges in self.supervisor.reports:
            self.progress.add(dict(metrics))
            self._gauges[name] = self._gauges.get(name, {}) | gauges
        self.supervisor.reports.clear()
        for name, host in self.hosts.items():
            if not host.ready:  # gauges of a process that died are obsolete
                self._gauges.pop(name, None)
        if (new := self.supervisor.restarts - self._counted_restarts) > 0:
            self.progress.add({"count/restarts": new})
            self._counted_restarts += new
        for node, evaluation in self.supervisor.step_results:
            self.evaluating.pop(node, None)
            if evaluation is not None:
                self.evaluation = dict(evaluation)
                self.progress.add_evaluation(evaluation["eval/return_mean"], self.until)
                self.observer.log_evaluation(self.progress.counters(), evaluation)
        self.supervisor.step_results.clear()
        for node, spawned in list(self.evaluating.items()):
            if self.host_of[node].spawned != spawned:  # the host died during the evaluation
                del self.evaluating[node]

    def evaluate(self, node: str) -> None:
        """Request a step of a scheduled role while training continues, unless one is already running."""
        if node not in self.evaluating and self.host_of[node].ready:
            self.evaluating[node] = self.host_of[node].spawned
            self.host_of[node].send("step", node)

    def evaluate_last(self) -> None:
        """Run the final evaluation, after training has ended."""
        for node in self.timers:
            self._wait_evaluations()
            self.evaluate(node)
            self._wait_evaluations()
        self.progress.add_evaluation_time()

    def _wait_evaluations(self) -> None:
        while self.evaluating:
            self.supervisor.poll(POLL_S)
            self.collect()
            if self.observer.stop_requested():
                return

    def log(self) -> None:
        """Log the metrics since the last line and the newest gauges."""
        gauges = {name: value for of_host in self._gauges.values() for name, value in of_host.items()}
        self.observer.log(self.progress.counters(), self.progress.read_means() | gauges)
        self._last_log = time.monotonic()

    def pause(self) -> None:
        """Let all active roles finish their step and pause."""
        self._unpaused = self.supervisor.pause(self.settings.stop_limit_s)
        for name in self._unpaused:
            self.observer.note(
                f"{name} did not finish its step within {self.settings.stop_limit_s:.0f} s; "
                "the checkpoint keeps its previous state"
            )
        self.collect()
        self.progress.add_training_time()

    def save(self, last: bool) -> None:
        """Make a checkpoint of all paused hosts; training resumes while it is written to disk."""
        state = self._state()
        self.progress.add_evaluation_time()
        if not last:
            self.supervisor.resume()
        if state is None:
            self.observer.note(
                "no checkpoint was made because a host did not return its state; the previous one is kept"
            )
        else:
            self.observer.save(self.progress.counters(), state, last)

    def _state(self) -> dict[str, Any] | None:
        """Return the state of all hosts, or None if that of one is missing.

        Clients come before their servers, so the state of a server contains what its clients have sent.
        """
        states: dict[str, dict[str, Any]] = {}
        for host in reversed(self.hosts.values()):
            evaluating = any(node.name in self.evaluating for node in host.nodes)
            # A host of a resumed run that is still starting keeps its state of the old checkpoint.
            starting = self.resumed and host.name in self.supervisor.never_ready
            if evaluating or not (host.saves_state or starting):
                continue
            state = self._state_of(host)
            if starting and not state:
                continue  # the old checkpoint has no state of it either
            if state is None:
                return None
            states[host.name] = state
        ordered = [states[name] for name in self.hosts if name in states]
        parts = {
            key: part for state in ordered for key, part in state.items() if key not in ("policy", "rng")
        }
        policy: dict[str, Any] = next((state["policy"] for state in ordered if state.get("policy")), {})
        rng = {name: state["rng"] for name, state in states.items() if state.get("rng")}
        return parts | {"policy": policy, "rng": rng}

    def _state_of(self, host: HostHandle) -> dict[str, Any] | None:
        """Return the current state of a host, or its state in the newest checkpoint if it does not reply."""
        if host.ready and host.name not in self._unpaused:
            host.send("state")
            self.supervisor.wait_replies("state", [host], self.settings.step_limit_s)
        attached = self.supervisor.replies.pop((host.name, "state"), None)
        if attached is not None:
            return self.supervisor.pool.decode_state(attached)
        return self._restore([node.name for node in host.nodes])


def _host_state(state: dict[str, Any], host: HostHandle) -> dict[str, Any] | None:
    """Return the entries of one host in a checkpoint; None if the checkpoint has none."""
    prefixes = tuple(f"{node.name}." for node in host.nodes)
    parts = {key: part for key, part in state.items() if key.startswith(prefixes)}
    rng = state.get("rng", {}).get(host.name, {})
    return parts | {"rng": rng} if parts or rng else None
