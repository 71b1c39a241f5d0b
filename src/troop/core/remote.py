"""Ways to use a peer besides calling it: ask and go on, inform, keep a question under way.

A peer on the same host is the object itself and all of this is a plain call. A peer elsewhere is a stub
whose methods are `RemoteCallable`s; the engine carries them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])


class Future(Protocol[T_co]):
    """An answer that may not be there yet."""

    def ready(self) -> bool:
        """Whether `result` would return at once."""
        ...

    def result(self) -> T_co:
        """The answer, waited for if need be."""
        ...


class RemoteCallable:
    """A method of a peer on another host; engines implement it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the method takes and gives
        """Ask and wait for the answer."""
        raise NotImplementedError

    def call_async(self, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401
        """Ask and go on."""
        raise NotImplementedError

    def send(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Inform and go on; waits while the peer's mailbox is full."""
        raise NotImplementedError


class Deferred(Generic[T]):
    """The answer of a peer on this host: asked for when it is wanted, so it is never stale."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._answer: list[T] = []

    def ready(self) -> bool:
        """Always: nobody has to be waited for."""
        return True

    def result(self) -> T:
        """The answer, as it was when first wanted."""
        if not self._answer:
            self._answer.append(self._ask())
        return self._answer[0]


def call_async(f: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Ask `f` and go on; a peer on this host answers when the result is wanted."""
    if isinstance(f, RemoteCallable):
        return cast("Future[T]", f.call_async(*args, **kwargs))
    return Deferred(lambda: f(*args, **kwargs))


def send(f: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
    """Inform; a full mailbox makes the teller wait, which is the back-pressure."""
    if isinstance(f, RemoteCallable):
        f.send(*args, **kwargs)
    else:
        f(*args, **kwargs)


class Prefetch(Generic[T]):
    """Keeps a question under way, so that its answer is there when it is wanted."""

    def __init__(self, f: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> None:
        self._ask: Callable[[], T] = lambda: f(*args, **kwargs)
        self._ask_later: Callable[[], Future[T]] = lambda: call_async(f, *args, **kwargs)
        self._elsewhere = isinstance(f, RemoteCallable)
        self._depth = 1
        self._asked: deque[Future[T]] = deque()

    def deep(self, questions: int) -> Self:
        """Keep this many questions under way instead of one."""
        self._depth = questions
        return self

    def take(self) -> T | None:
        """The oldest answer if it is there, else None; asks again for each answer taken.

        A peer on this host is simply called: its answer is of this moment.
        """
        if not self._elsewhere:
            return self._ask()
        while len(self._asked) < self._depth:
            self._asked.append(self._ask_later())
        if not self._asked[0].ready():
            return None
        answer = self._asked.popleft().result()
        self._asked.append(self._ask_later())
        return answer


def batched(method: F) -> F:
    """Mark a method that is row-wise in all arguments: an engine may join the rows of waiting callers."""
    method.batched = True  # type: ignore[attr-defined]
    return method


def zero_copy(method: F) -> F:
    """Mark a method that keeps nothing of its arguments: an engine may lend it memory instead of a copy.

    Nor may it change them: the next call may be lent the same tensors, with other numbers in them.
    """
    method.zero_copy = True  # type: ignore[attr-defined]
    return method


def readonly(method: F) -> F:
    """Mark a method that changes nothing: an engine may give many callers one copy of the same answer."""
    method.readonly = True  # type: ignore[attr-defined]
    return method
