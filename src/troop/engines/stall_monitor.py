"""StallMonitor: a thread that reports a step of the inline engine which does not return, and ends it."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

from troop.core.engine import Result, RunObserver, StallObserver
from troop.core.env_calls import EngineInterrupt, EnvCall, abandon, current_call
from troop.core.errors import TrainingFault, TroopError
from troop.core.locations import thread_stack, user_location

POLL_S = 0.25
INTERRUPT = signal.SIGURG  # ignored by default and rarely used; its handler raises StepInterrupted

Phase = Literal["starting", "stepping", "evaluating", "saving", "closing"]


@dataclass(frozen=True)
class StallLimits:
    """Seconds after which a call that has not returned is reported or ended."""

    report_s: float = 20.0  # without a step; also of an env call when the minutes of the run are over
    stop_s: float = 5.0  # of an env call or an evaluation, after a stop was requested
    update_s: float = 60.0  # of anything else, after a stop was requested
    interrupt_s: float = 10.0  # of repeated interrupts, after which the monitor itself ends the run


class StepInterrupted(EngineInterrupt):
    """Raised inside a step that does not return. `fault` is None if a stop was requested."""

    def __init__(self, in_env: bool, fault: TrainingFault | None) -> None:
        super().__init__()
        self.in_env, self.fault = in_env, fault


class StallMonitor:
    """Watches the thread that creates it, from a thread of its own, between `__enter__` and `__exit__`.

    The watched thread reports its phase and each completed step. If a call does not return and the run must
    end, the monitor raises StepInterrupted in the watched thread with a signal. Code that does not react,
    such as a loop in C, cannot be interrupted: then `save` is called in the monitor's thread, since the state
    of the roles does not change while the watched thread is inside an env, and the process exits.
    """

    def __init__(
        self,
        observer: RunObserver,
        step_limit_s: float,
        over_budget: Callable[[], bool],
        save: Callable[[], None],
        result: Callable[[], Result],
        limits: StallLimits | None = None,
    ) -> None:
        self.observer, self.step_limit_s, self.limits = observer, step_limit_s, limits or StallLimits()
        self._over_budget, self._save, self._result = over_budget, save, result
        self.phase: Phase = "starting"
        self._since = time.monotonic()  # of the phase, or of the last completed step
        self._thread_id = threading.get_ident()
        self._reported: object = None  # the call or the step that was reported
        self._stop_requested_at: float | None = None
        self._request: tuple[EnvCall | None, Phase, TrainingFault | None] | None = None
        self._requested_at = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stall monitor", daemon=True)
        self._previous: Any = None
        self._can_interrupt = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> StallMonitor:
        if self._can_interrupt:
            self._previous = signal.signal(INTERRUPT, self._on_interrupt)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._can_interrupt:
            signal.signal(INTERRUPT, self._previous)

    def stepped(self) -> None:
        """Record that a step has been completed."""
        self._since = time.monotonic()

    @contextlib.contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Set the phase while the enclosed code runs."""
        previous, self.phase, self._since = self.phase, phase, time.monotonic()
        try:
            yield
        finally:
            self.phase, self._since = previous, time.monotonic()

    def _watch(self) -> None:
        while not self._ended.wait(POLL_S):
            call, phase, now = current_call(self._thread_id), self.phase, time.monotonic()
            if self.observer.stop_requested() and self._stop_requested_at is None:
                self._stop_requested_at = now
            if phase == "saving":
                continue
            seconds = now - (call.began if call else self._since)
            if seconds >= self.limits.report_s and (call is not None or phase == "stepping"):
                self._report(call, seconds)
            due, fault = self._end(call, phase, seconds, now)
            if due:
                self._interrupt(call, phase, fault, now)
            else:
                self._request = None

    def _report(self, call: EnvCall | None, seconds: float) -> None:
        stalled, text = call or self._since, ""
        if stalled != self._reported:
            self._reported = stalled
            text = f"{self._describe(call, seconds)}; the run is still waiting for it"
        if isinstance(self.observer, StallObserver):
            self.observer.report_stall(seconds, text)
        elif text:
            self.observer.note(text)

    def _describe(self, call: EnvCall | None, seconds: float) -> str:
        stack = thread_stack(self._thread_id if call is None else call.thread)
        location = user_location(stack, fallback=call is None)  # envs in other processes have no line here
        what = str(call) if call is not None else "a step of a role"
        return f"{what} has not returned for {seconds:.0f} s" + (f"; it is at {location}" if location else "")

    def _end(
        self, call: EnvCall | None, phase: Phase, seconds: float, now: float
    ) -> tuple[bool, TrainingFault | None]:
        """Return whether the call must end now, and as which fault; a requested stop is none."""
        if self._stop_requested_at is not None:
            waited = now - self._stop_requested_at
            if phase == "starting":  # there is nothing to save yet
                return True, None
            elapsed = seconds if phase != "evaluating" else now - self._since
            in_env = call is not None or phase == "evaluating"
            limit = self.limits.stop_s if in_env else self.limits.update_s
            return min(waited, elapsed) >= limit and (in_env or phase == "stepping"), None
        if call is None:
            return False, None
        over = seconds >= self.limits.report_s and (phase == "closing" or self._over_budget())
        if over or seconds >= self.step_limit_s:
            return True, TrainingFault(f"{self._describe(call, seconds)}.")
        return False, None

    def _interrupt(self, call: EnvCall | None, phase: Phase, fault: TrainingFault | None, now: float) -> None:
        if self._request is None:
            self._requested_at = now
        self._request = (call, phase, fault)
        if self._can_interrupt:
            signal.pthread_kill(self._thread_id, INTERRUPT)
        if now - self._requested_at >= self.limits.interrupt_s:
            self._end_from_here(call, phase, fault)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise in the watched thread, unless it has left the call since the signal was sent."""
        request, self._request = self._request, None
        if request is None:
            return
        call, phase, fault = request
        any_call = fault is None and phase in ("starting", "evaluating")
        if self.phase == phase and (any_call or current_call(self._thread_id) is call):
            raise StepInterrupted(call is not None or phase == "evaluating", fault)

    def _end_from_here(self, call: EnvCall | None, phase: Phase, fault: TrainingFault | None) -> None:
        """End the run in this thread, because the watched one does not react."""
        if not isinstance(self.observer, StallObserver):
            return
        if call is not None:
            abandon(self._thread_id)
        end: Result | TroopError = fault or self._result()
        if call is not None and phase in ("stepping", "evaluating"):
            try:
                self._save()
            except TroopError as error:
                end = error
        self.observer.exit_process(end)
