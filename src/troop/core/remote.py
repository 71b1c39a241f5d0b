"""Calls to peers that do not block the caller: asynchronous calls, one-way messages, prefetched replies.

A peer on the same host is the object itself, and every function of this module makes a plain call. A peer on
another host is a stub whose methods are `RemoteCallable`s, which the engine implements.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])


class Future(Protocol[T_co]):
    """The result of a call that may not have returned yet."""

    def ready(self) -> bool:
        """Return whether `result` returns without blocking."""
        ...

    def result(self) -> T_co:
        """Return the result; block until there is one."""
        ...


class RemoteCallable:
    """A method of a peer on another host; implemented by the engines."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the signature is the method's
        """Call the method and block until its result arrives."""
        raise NotImplementedError

    def call_async(self, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401
        """Send the call and return a future of its result."""
        raise NotImplementedError

    def send(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Send the call without a reply; block while the peer's queue is full."""
        raise NotImplementedError


class Deferred(Generic[T]):
    """A call to a peer on the same host, made when its result is first requested, so it is never stale."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._result: list[T] = []  # empty before the call

    def ready(self) -> bool:
        """Return True: there is nothing to wait for."""
        return True

    def result(self) -> T:
        """Make the call if it has not been made, and return its result."""
        if not self._result:
            self._result.append(self._call())
        return self._result[0]


def call_async(f: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Call `f` without blocking; a peer on the same host is called when the result is requested."""
    if isinstance(f, RemoteCallable):
        return cast("Future[T]", f.call_async(*args, **kwargs))
    return Deferred(lambda: f(*args, **kwargs))


def send(f: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
    """Call `f` without a reply; blocks while a remote peer's queue is full (back-pressure)."""
    if isinstance(f, RemoteCallable):
        f.send(*args, **kwargs)
    else:
        f(*args, **kwargs)


class Prefetch(Generic[P, T]):
    """A queue of requests to one method of a peer, sent before their replies are needed.

    A remote peer handles the requests while the caller continues; replies are taken in the order of the
    requests. A peer on the same host is called by `poll`, so its reply is never stale.
    """

    def __init__(self, method: Callable[P, T], depth: int = 1) -> None:
        self.method, self.depth = method, depth
        self._futures: deque[Future[T]] = deque()

    @property
    def in_flight(self) -> int:
        """Number of requests whose reply has not been taken by `poll`."""
        return len(self._futures)

    def request(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Send one request with these arguments."""
        self._futures.append(call_async(self.method, *args, **kwargs))

    def fill(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Send requests with these arguments until `depth` are in flight."""
        while len(self._futures) < self.depth:
            self.request(*args, **kwargs)

    def ready(self) -> bool:
        """Return whether the oldest request has a reply."""
        return bool(self._futures) and self._futures[0].ready()

    def poll(self) -> T | None:
        """Take the reply of the oldest request; None if it has not arrived or nothing was requested."""
        return self._futures.popleft().result() if self.ready() else None


@dataclass(frozen=True)
class BatchLimits:
    """How many rows an engine joins into one call of a batched method, and how long calls wait for others.

    A call waits until `max_rows` rows wait, at most `deadline_s`. With 0 seconds it is joined with the calls
    that are there already; with infinity only full batches are made, as in SEED's own code.
    """

    max_rows: int = 1 << 62
    deadline_s: float = 0.0


def batched(method: F) -> F:
    """Mark a method as row-wise in all its arguments: an engine may concatenate the rows of waiting calls.

    The attribute `batch_limits` of the role, if it has one, limits the batches.
    """
    method.batched = True  # type: ignore[attr-defined]
    return method


def zero_copy(method: F) -> F:
    """Mark a method that keeps no reference to its arguments: an engine may pass views of shared memory.

    The method must not modify the arguments either, since later calls may receive the same memory.
    """
    method.zero_copy = True  # type: ignore[attr-defined]
    return method


def readonly(method: F) -> F:
    """Mark a method without side effects: an engine may send one encoded reply to several callers."""
    method.readonly = True  # type: ignore[attr-defined]
    return method
