"""Worker: the main loop of one host. It steps roles, serves calls of peers and handles commands."""

from __future__ import annotations

import gc
import os
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

from troop.core.env_calls import EngineInterrupt
from troop.core.errors import TroopError
from troop.core.group import Group
from troop.core.program import GroupRef, join_alone
from troop.core.role import Checkpointable, PublishesWeights, Restartable, RestartsFresh
from troop.engines.host import Host
from troop.engines.metrics import MetricAggregator
from troop.engines.role_times import RoleTimes
from troop.engines.rpc.dispatcher import Dispatcher
from troop.engines.rpc.stub import Stub
from troop.engines.rpc.transport import HostSpec, Transport
from troop.logs.process_usage import ProcessUsage

if TYPE_CHECKING:  # it imports torch
    from troop.engines.distributed_group import DistributedGroup

HEARTBEAT_S = 1.0  # longest time between two reports of a host
DELIVERY_LIMIT_S = 1.0  # a pause waits this long for sent messages to arrive; less than the driver waits
CLOSE_LIMIT_S = 5.0  # a failed host exits after this time even if its roles are not closed yet
GROUP_POLL_S = 0.0005  # poll interval of a role that waits in a collective
BACKOFF_S = (0.001, 0.002, 0.004, 0.008, 0.01)  # pauses after consecutive rounds in which no role had work


class Shutdown(EngineInterrupt):
    """Raised inside a blocked role when the driver has requested the end of this host."""


class Worker:
    """Steps the active roles of a host in a loop; serves incoming calls and handles commands in between.

    The driver is the process that started this host. It sends commands and receives reports.
    """

    def __init__(self, spec: HostSpec, transport: Transport) -> None:
        self.spec, self.transport = spec, transport
        self.metrics, self.role_times = MetricAggregator(), RoleTimes(list(spec.program.nodes))
        self.usage = ProcessUsage()
        self.paused, self.stopping, self.started = True, False, False
        self.pending: list[str] = []  # commands to be handled between steps
        self.group: DistributedGroup | None = None
        self._initial_state: dict[str, Any] | None = None
        self._restored = False  # whether this host replaces one that crashed
        self._activity = ("", "its constructor")  # node and the method that runs, for failure reports
        self._last_report = self._last_gauges = time.monotonic()
        self._unreported_steps = 0
        self._idle_rounds, self._woken = 0, False
        self._delivery_deadline: float | None = None  # of the current pause
        transport.bind(self)

    def run(self) -> None:
        """Build the roles, restore their state, then loop until the driver stops the host.

        If a role raises an exception, its state may be corrupt: the worker reports the failure and exits.
        """
        try:
            self._start()
            gc.freeze()  # what exists now stays: scanning it in every collection would cost milliseconds
            while not self.stopping:
                self._loop()
        except Exception as error:
            self._report_failure(error)
            os._exit(1)  # regardless of threads that the role has started
        self.close()

    def _start(self) -> None:
        self.host = Host(self.spec.program, self.spec.seed, self._stub, self._on_build, self._join)
        self.dispatcher = Dispatcher(
            self.host, self.transport.edges, self.transport.replies, self.role_times, self._on_call
        )
        while not self.started:
            self.transport.receive(HEARTBEAT_S)
            if self.stopping:
                raise Shutdown
        roles = self.host.roles.values()
        if self._initial_state is not None:
            self.host.load_state_dict(self._initial_state, self._restores)
            self._initial_state = None
            if self._restored:
                for role in roles:
                    if isinstance(role, Restartable):
                        role.on_restart()
        saves_state = any(isinstance(role, Checkpointable | PublishesWeights) for role in roles)
        restores_state = any(isinstance(role, Checkpointable) and not _restarts_fresh(role) for role in roles)
        self.transport.send_control(
            "ready", saves_state, restores_state, bool(self.host.active), self.host.notes()
        )

    def _restores(self, role: Any) -> bool:  # noqa: ANN401
        """Return whether a role loads its state: all do in a resumed run, not all after a crash."""
        return not (self._restored and _restarts_fresh(role))

    def _stub(self, node: str) -> Stub:
        return Stub(self.transport.client(self.spec.servers[node]), node)

    def _join(self, ref: GroupRef) -> Group:
        """Return the group of a role of this host; waits for the other members."""
        if self.spec.rendezvous is None:
            return join_alone(ref)
        if self.group is None:
            from troop.engines.distributed_group import DistributedGroup

            self.group = DistributedGroup(ref, self.spec.rendezvous, self._wait_in_group)
        return self.group

    @property
    def _between_rounds(self) -> bool:
        """Whether the host can pause: a member of a group pauses only together with the others."""
        return self.group is None or self.group.paused

    def _on_build(self, node: str) -> None:
        self._activity = (node, "its constructor")

    def _on_call(self, node: str, method: str) -> None:
        self._activity = (node, method)

    def _loop(self) -> None:
        if not self._woken:
            self.transport.receive(0.0)
        self._woken = False
        served = self.dispatcher.serve()
        if self.pending:
            self._handle_pending()
        paused = self.paused if self.group is None else self.group.paused
        stepping = bool(self.host.active) and not paused
        progressed = stepping and self._step_all()
        self.report(progressed or served)
        if progressed or (served and stepping):
            self._idle_rounds = 0
        elif stepping:
            self._backoff()
        else:
            self._serve_only()

    def _serve_only(self) -> None:
        """Serve calls without stepping until a command arrives or a report is due."""
        deadline = self._last_report + (self.spec.report_s if self._unreported_steps else HEARTBEAT_S)
        while not (self.pending or self.stopping or self._woken):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            received = self.transport.receive(min(remaining, self.dispatcher.due_in()))
            if not self.dispatcher.serve() and received:
                self._woken = True  # by a command of the driver

    def _step_all(self) -> bool:
        progressed = False
        for name in self.host.active:
            metrics = self._step(name)
            if metrics is not None:
                progressed = True
                self.metrics.add(metrics)
        return progressed

    def _step(self, name: str) -> Any:  # noqa: ANN401
        self._activity = (name, "step")
        began = time.perf_counter()
        metrics = self.host.roles[name].step()
        self.dispatcher.invalidate_replies()
        self.role_times.add_busy(name, time.perf_counter() - began, int(metrics is not None))
        self._unreported_steps += metrics is not None
        return metrics

    def _backoff(self) -> None:
        """No role had work: sleep until a message arrives, at most for the next time of BACKOFF_S."""
        seconds = BACKOFF_S[min(self._idle_rounds, len(BACKOFF_S) - 1)]
        remaining = seconds = min(seconds, self.dispatcher.due_in())
        self._idle_rounds += 1
        began = time.perf_counter()
        while remaining > 0 and not self.stopping and not self._woken:
            self._woken = self.transport.receive(remaining)
            remaining = seconds - (time.perf_counter() - began)
        if self.transport.awaiting_replies:
            self.role_times.add_idle_wait(self.host.active[0], time.perf_counter() - began)

    def _handle_pending(self) -> None:
        """Handle the commands that must wait for the end of a step."""
        while self.pending:
            if self.pending[0] == "paused" and (not self._between_rounds or self._awaits_delivery()):
                return  # keep serving meanwhile: peers may wait for replies before they can pause
            command = self.pending.pop(0)
            if command == "paused":
                self.report(True, force=True)  # counts everything done before the pause
                self.transport.send_control("paused")
            elif command == "state":
                self.dispatcher.read_incoming()
                self.dispatcher.serve()
                self.transport.send_control("state", state=self.host.state_dict())
            else:
                metrics = self._step(command)
                plain = None if metrics is None else {name: float(value) for name, value in metrics.items()}
                self.transport.send_control("stepped", command, plain)

    def _awaits_delivery(self) -> bool:
        """Return whether sent messages are still undelivered; waits 10 ms for them, up to a deadline."""
        now = time.monotonic()
        if self._delivery_deadline is None:
            self._delivery_deadline = now + DELIVERY_LIMIT_S
        if not self.transport.has_undelivered or now > self._delivery_deadline:
            return False
        self._woken = self.transport.receive(0.01)
        return True

    def handle_command(self, verb: str, args: list[Any], state: dict[str, Any] | None = None) -> None:
        """Handle a command of the driver, or queue it for the end of the current step.

        `start [restored]` with an optional state, `pause [number]`, `resume [number]`, `stop`, `step [node]`,
        `state`.
        """
        if verb == "start":
            self.started, self._restored, self._initial_state = True, args[0], state
        elif verb == "pause":
            self.paused, self._delivery_deadline = True, None
            self.pending.append("paused")
            if self.group is not None:
                self.group.request_pause(args[0])
        elif verb == "resume":
            self.paused = False
            self.pending = [command for command in self.pending if command != "paused"]  # came too late
            if self.group is not None:
                self.group.resume(args[0])
        elif verb == "stop":
            self.stopping = True
        else:
            self.pending.append(args[0] if verb == "step" else verb)

    def check_wait(self, reason: str, began: float) -> None:
        """Called while a role is blocked since `began` (perf_counter): send heartbeats, enforce the limit.

        Raises TimeoutError naming `reason` after `wait_limit_s`, and Shutdown if the driver stops the host.
        """
        if self.stopping:
            raise Shutdown
        seconds = time.perf_counter() - began
        if seconds > self.spec.wait_limit_s:
            raise TimeoutError(f"waited {seconds:.0f} s for {reason}")
        if seconds > HEARTBEAT_S:
            self.report(False)

    def _wait_in_group(self, reason: str, began: float) -> None:
        """Called while a role waits for other members of its group: also reads commands of the driver."""
        self.transport.receive(GROUP_POLL_S)
        self.check_wait(reason, began)

    def report(self, progressed: bool, force: bool = False) -> None:
        """Send metrics, gauges and notes to the driver if a report is due.

        A report is due after `report_s` if the host has `progressed`, else after HEARTBEAT_S, and not while
        earlier reports wait to be sent.
        """
        now = time.monotonic()
        interval = self.spec.report_s if progressed else HEARTBEAT_S
        if (not force and now - self._last_report < interval) or self.transport.backlogged:
            return
        gauges: dict[str, float] = {}
        if (force or now - self._last_gauges >= HEARTBEAT_S) and hasattr(self, "host"):
            gauges = self._gauges()
            self._last_gauges = now
        notes = self.host.notes() if hasattr(self, "host") else []
        self._send_files()
        metrics = self.metrics.read_counts() | self.metrics.read_means()
        self.transport.send_control("report", self._unreported_steps, metrics, gauges, notes)
        self._last_report, self._unreported_steps = now, 0

    def _send_files(self) -> None:
        for name, text in self.host.files().items() if hasattr(self, "host") else ():
            self.transport.send_control("file", name, text)

    def _gauges(self) -> dict[str, float]:
        gauges = self.role_times.read() | {name: float(x) for name, x in self.host.gauges().items()}
        messages, size = self.transport.queue_size()
        of_process = {"queue": messages, "queue_bytes": size} | self.usage.read()
        for name in self.host.roles:
            gauges |= {f"role/{name}/{key}": value for key, value in of_process.items()}
        return gauges

    def _report_failure(self, error: Exception) -> None:
        node, method = self._activity
        exit_timer = threading.Timer(CLOSE_LIMIT_S, os._exit, (1,))  # closing a broken role may hang
        exit_timer.daemon = True
        exit_timer.start()
        kind = type(error).__name__
        for_user = isinstance(error, TroopError)
        trace = "".join(traceback.format_exception(error))[-20_000:]
        reason = str(error) if for_user else (str(error).strip().splitlines() or [""])[0]
        activity = f"{method}()" if method.isidentifier() else method
        self._send_files()
        self.transport.send_control("failed", node, activity, kind, reason, for_user, trace)
        self.close()

    def close(self) -> None:
        """Close all roles, report those that cannot be closed, and flush the control messages."""
        if hasattr(self, "host"):
            for text in self.host.close():
                self.transport.send_control("note", text)
        if self.group is not None:
            self.group.close()
        self.transport.flush(2.0)


def _restarts_fresh(role: Any) -> bool:  # noqa: ANN401
    return isinstance(role, RestartsFresh) and role.restart_fresh
