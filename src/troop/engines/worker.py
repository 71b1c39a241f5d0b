"""Worker: what runs in the process of one host."""

from __future__ import annotations

import gc
import os
import threading
import time
import traceback
from typing import Any

from troop.core.errors import TroopError
from troop.engines.host import Host
from troop.engines.metrics import MetricAggregator
from troop.engines.role_times import RoleTimes
from troop.engines.rpc.dispatcher import Dispatcher
from troop.engines.rpc.stub import Stub
from troop.engines.rpc.transport import HostSpec, Transport

HEARTBEAT_S = 1.0  # seconds between reports of any host
DELIVERY_LIMIT_S = (
    1.0  # seconds a pause waits for what was told to arrive; less than the launcher waits for it
)
CLOSE_LIMIT_S = 5.0  # seconds for a failed host to close its roles
BACKOFF_S = (0.001, 0.002, 0.004, 0.008, 0.01)  # seconds until a role that had nothing to do is asked again


class Shutdown(BaseException):
    """The launcher wants this process to end while a role waits."""


class Worker:
    """Loops `step()` of the host's active roles, serves letters in between, and listens to the launcher."""

    def __init__(self, spec: HostSpec, transport: Transport) -> None:
        self.spec, self.transport = spec, transport
        self.metrics, self.role_times = MetricAggregator(), RoleTimes(list(spec.program.nodes))
        self.paused, self.stopping, self.started = True, False, False
        self.pending: list[str] = []  # what the launcher wants at the next boundary
        self.initial_state: dict[str, Any] | None = None
        self.restored = False
        self._at = ("", "its constructor")  # node and what it is doing
        self._reported = self._read = time.monotonic()
        self._moved = 0
        self._idle, self._woken = 0, False
        self._settles: float | None = None  # until when what was told may arrive, at a pause
        transport.bind(self)

    def run(self) -> None:
        """Build, take back what was saved, then loop."""
        try:
            self._open()
            gc.freeze()  # what is there now stays: to look through it again and again costs milliseconds
            while not self.stopping:
                self._loop()
        except Exception as error:  # a role failed: its state may be corrupt, so the process ends
            self._fail(error)
            os._exit(1)  # whatever threads the role has left
        self.close()

    def _open(self) -> None:
        self.host = Host(self.spec.program, self.spec.seed, self._stub, self._building)
        self.dispatcher = Dispatcher(
            self.host, self.transport.edges, self.transport.replies, self.role_times, self._doing
        )
        while not self.started:
            self.transport.receive(HEARTBEAT_S)
            if self.stopping:
                raise Shutdown
        if self.initial_state is not None:
            self.host.load_state_dict(self.initial_state, self._wanted)
            self.initial_state = None
            if self.restored:
                for role in self.host.roles.values():
                    if hasattr(role, "on_restart"):
                        role.on_restart()  # its peers went on meanwhile: what comes next does not join what it has
        roles = self.host.roles.values()
        saves = any(hasattr(role, "state_dict") or hasattr(role, "latest") for role in roles)
        restores = any(
            hasattr(role, "load_state_dict") and not getattr(role, "restart_fresh", False) for role in roles
        )
        self.transport.send_control("ready", saves, restores, bool(self.host.active), self.host.notes())

    def _wanted(self, role: Any) -> bool:  # noqa: ANN401
        """Whether a role takes back its saved state: all do in a resumed run, not all after a death."""
        return not (self.restored and getattr(role, "restart_fresh", False))

    def _stub(self, node: str) -> Stub:
        return Stub(self.transport.client(self.spec.servers[node]), node)

    def _building(self, name: str) -> None:
        self._at = (name, "its constructor")

    def _doing(self, node: str, what: str) -> None:
        self._at = (node, what)

    def _loop(self) -> None:
        if not self._woken:
            self.transport.receive(0.0)
        self._woken = False
        served = self.dispatcher.serve()
        if self.pending:
            self._boundary()
        stepping = bool(self.host.active) and not self.paused
        moved = stepping and self._step_all()
        self.report(moved or served)
        if moved or (served and stepping):
            self._idle = 0
        elif stepping:
            self._backoff()
        else:
            self._serve_only()

    def _serve_only(self) -> None:
        """No role steps: do nothing but answer, until the launcher wants something or a report is due."""
        until = self._reported + (self.spec.report_s if self._moved else HEARTBEAT_S)
        while not (self.pending or self.stopping or self._woken):
            left = until - time.monotonic()
            if left <= 0:
                break
            if self.transport.receive(left) and not self.dispatcher.serve():
                self._woken = True  # by the launcher

    def _step_all(self) -> bool:
        moved = False
        for name in self.host.active:
            metrics = self._step(name)
            if metrics is not None:
                moved = True
                self.metrics.add(metrics)
        return moved

    def _step(self, name: str) -> Any:  # noqa: ANN401
        self._at = (name, "step")
        began = time.perf_counter()
        metrics = self.host.roles[name].step()
        self.dispatcher.changed()
        self.role_times.add_busy(name, time.perf_counter() - began, int(metrics is not None))
        self._moved += metrics is not None
        return metrics

    def _backoff(self) -> None:
        """Nothing to do: sleep until a letter, an answer or the launcher comes, but not for long."""
        left = seconds = BACKOFF_S[min(self._idle, len(BACKOFF_S) - 1)]
        self._idle += 1
        began = time.perf_counter()
        while left > 0 and not self.stopping and not self._woken:
            self._woken = self.transport.receive(left)
            left = seconds - (time.perf_counter() - began)
        if self.transport.awaiting_replies:
            self.role_times.add_idle_wait(self.host.active[0], time.perf_counter() - began)

    def _boundary(self) -> None:
        """What the launcher asked for, between steps."""
        while self.pending:
            if self.pending[0] == "paused" and self._settling():
                return  # to serve: others may wait for that
            what = self.pending.pop(0)
            if what == "paused":
                self.report(True, force=True)  # what was done before the hold is counted before it
                self.transport.send_control("paused")
            elif what == "state":
                self.dispatcher.read_incoming()
                self.dispatcher.serve()
                self.transport.send_control("state", state=self.host.state_dict())
            else:
                metrics = self._step(what)
                plain = None if metrics is None else {name: float(value) for name, value in metrics.items()}
                self.transport.send_control("stepped", what, plain)

    def _settling(self) -> bool:
        """Whether what was told is still under way; waits for it a moment."""
        now = time.monotonic()
        if self._settles is None:
            self._settles = now + DELIVERY_LIMIT_S
        if not self.transport.has_undelivered or now > self._settles:
            return False
        self._woken = self.transport.receive(0.01)
        return True

    def handle_command(self, what: str, rest: list[Any], initial_state: dict[str, Any] | None = None) -> None:
        """Do, or remember for the next boundary, what the launcher says."""
        if what == "start":
            self.started, self.restored, self.initial_state = True, rest[0], initial_state
        elif what == "pause":
            self.paused, self._settles = True, None
            self.pending.append("paused")
        elif what == "resume":
            self.paused = False
        elif what == "stop":
            self.stopping = True
        else:
            self.pending.append(rest[0] if what == "step" else what)

    def check_wait(self, why: str, began: float) -> None:
        """A role waits, since `began`, for `why`: it may not do so for ever, nor without a sign of life."""
        if self.stopping:
            raise Shutdown
        seconds = time.perf_counter() - began
        if seconds > self.spec.wait_limit_s:
            raise TimeoutError(f"waited {seconds:.0f} s for {why}")
        if seconds > HEARTBEAT_S:
            self.report(False)

    def report(self, moved: bool, force: bool = False) -> None:
        """Tell the launcher where this host stands, now and then."""
        now = time.monotonic()
        since = now - self._reported
        if (
            not force and since < (self.spec.report_s if moved else HEARTBEAT_S)
        ) or self.transport.backlogged:
            return
        gauges: dict[str, float] = {}
        if (force or now - self._read >= HEARTBEAT_S) and hasattr(self, "host"):
            gauges = self.role_times.read() | {name: float(x) for name, x in self.host.gauges().items()}
            self._read = now
            messages, size = self.transport.queue_size()
            for name in self.host.roles:
                gauges |= {f"role/{name}/queue": messages, f"role/{name}/queue_bytes": size}
        notes = self.host.notes() if hasattr(self, "host") else []
        self.transport.send_control(
            "report", self._moved, self.metrics.read_counts() | self.metrics.read_means(), gauges, notes
        )
        self._reported, self._moved = now, 0

    def _fail(self, error: Exception) -> None:
        node, doing = self._at
        hurry = threading.Timer(CLOSE_LIMIT_S, os._exit, (1,))  # a broken role may not even close
        hurry.daemon = True
        hurry.start()
        kind = type(error).__name__
        mine = isinstance(error, TroopError)
        text = "".join(traceback.format_exception(error))[-20_000:]
        reason = str(error) if mine else (str(error).strip().splitlines() or [""])[0]
        self.transport.send_control(
            "failed", node, f"{doing}()" if doing.isidentifier() else doing, kind, reason, mine, text
        )
        self.close()

    def close(self) -> None:
        """Close the roles, whatever they say about it, and see that the last words leave."""
        if hasattr(self, "host"):
            for name, role in self.host.roles.items():
                try:
                    if hasattr(role, "close"):
                        role.close()
                except Exception as error:
                    self.transport.send_control(
                        "note", f"{name} could not be closed: {type(error).__name__}: {error}"
                    )
        self.transport.flush(2.0)
