"""Calls of env methods: which thread is inside one and since when, and what a user's env raised.

Env code is the only code of a run that Troop cannot trust to return. An engine reads `current_call` from
another thread to report or end a call that lasts too long.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

from troop.core.errors import TroopError
from troop.core.locations import describe_error


class EnvFailure(Exception):
    """An env raised an exception; the message names env, method, exception, file and line.

    It is not a TroopError: engines that restart roles treat it as the death of the role.
    """


class EngineInterrupt(BaseException):
    """Raised by an engine inside a step to end it; no env call reports it as an exception of the env."""


@dataclass(frozen=True)
class EnvCall:
    """A call of an env method that has not returned yet."""

    env: str
    method: str
    began: float  # time.monotonic()
    thread: int  # that runs it

    def __str__(self) -> str:
        return f"{self.method}() of env '{self.env}'"


_CTRL_C = signal.default_int_handler  # runs replace it by a handler that raises nothing
_calls: dict[int, EnvCall] = {}  # by thread
_abandoned: set[int] = set()  # threads whose run was ended by another thread
_acting_for: dict[int, int] = {}  # thread -> the thread under which its calls are listed


def current_call(thread_id: int) -> EnvCall | None:
    """Return the outermost env call that a thread is in."""
    return _calls.get(thread_id)


@contextlib.contextmanager
def acting_for(thread_id: int) -> Iterator[None]:
    """List the calls that this thread makes inside as those of another thread, which waits for it."""
    _acting_for[threading.get_ident()] = thread_id
    try:
        yield
    finally:
        del _acting_for[threading.get_ident()]


def abandon(thread_id: int) -> None:
    """Let a thread block for ever at the end of its env call, because another thread ends its run."""
    _abandoned.add(thread_id)


def forget_calls(thread_id: int) -> None:
    """Remove the call of a thread whose run has ended; a thread that acted for it may hang in it for ever."""
    _calls.pop(thread_id, None)


class env_call:  # noqa: N801 - a context manager, used like a function
    """Marks the enclosed code as a call of `method` of the env `env`.

    Raises EnvFailure for any exception of the env, whatever its class. Errors of Troop, MemoryError,
    EngineInterrupt and a KeyboardInterrupt that Python's own handler of Ctrl-C raises pass unchanged.
    """

    __slots__ = ("_call", "_thread")

    def __init__(self, env: str, method: str) -> None:
        thread = threading.get_ident()
        self._call = EnvCall(env, method, time.monotonic(), thread)
        self._thread = _acting_for.get(thread, thread)

    def __enter__(self) -> None:
        _calls.setdefault(self._thread, self._call)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._thread in _abandoned:
            time.sleep(3600)
        if _calls.get(self._thread) is self._call:
            del _calls[self._thread]
        if error is None or isinstance(error, TroopError | EnvFailure | MemoryError | EngineInterrupt):
            return
        if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is _CTRL_C:
            return
        raise EnvFailure(f"{self._call} raised {describe_error(error)}") from error
