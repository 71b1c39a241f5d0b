"""StopSignals: counts the signals that request a stop, also while the main thread executes no Python code."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from troop.core.signals import STOP_SIGNALS


class StopSignals:
    """Handles STOP_SIGNALS between `__enter__` and `__exit__`; the second one calls `on_second`.

    Python runs handlers in the main thread between two bytecodes. A thread that is inside a C function, such
    as a simulator that hangs, never gets there; but the interpreter writes the number of each signal to a
    pipe at once, and any thread that calls `requested` reads it. Does nothing outside of the main thread,
    where the embedding program handles signals.
    """

    def __init__(self, on_second: Callable[[], None]) -> None:
        self._on_second = on_second
        self._handled = self._received = 0  # by the handler, and through the pipe
        self._previous: dict[int, Any] = {}
        self._pipe: tuple[int, int] | None = None
        self._previous_fd = -1

    def __enter__(self) -> Self:
        for number in STOP_SIGNALS:
            try:
                self._previous[number] = signal.signal(number, self._on_signal)
            except ValueError:  # not the main thread
                return self
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        self._previous_fd = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._pipe is not None:
            signal.set_wakeup_fd(self._previous_fd)
            for end in self._pipe:
                os.close(end)
            self._pipe = None
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def requested(self) -> bool:
        """Whether a signal requested a stop."""
        if self._pipe is not None:
            try:
                numbers = os.read(self._pipe[0], 1024)
            except BlockingIOError:
                numbers = b""
            self._received += sum(number in STOP_SIGNALS for number in numbers)
            if self._received > 1:
                self._on_second()
        return self._handled + self._received > 0

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._handled += 1
        if self._handled > 1:
            self._on_second()


def _forget_pipe() -> None:
    """Let a forked child, such as one of a user's env, not write its own signals to the parent's pipe."""
    signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_forget_pipe)
