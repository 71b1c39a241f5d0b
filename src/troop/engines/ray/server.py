"""The server's end of an edge over Ray: letters once, in turn, and of the newest life of their sender."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from troop.engines.ray.client import Body, Replaced, body, opened
from troop.engines.rpc.codec import Packed, pack
from troop.engines.rpc.message import TELL

SHARED = 100 << 10  # bytes from which one copy of an answer serves all who get the same


class RayLetter:
    """A letter that came, and whoever waits for what becomes of it."""

    def __init__(self, order: int, kind: int, body: Body) -> None:
        self.order, self.kind, self.body = order, kind, body
        self.size = len(body[0]) + (0 if body[1] is None else len(body[1]))
        self._loop = asyncio.get_running_loop()
        self._ends: list[asyncio.Future[Any]] = [self._loop.create_future()]
        self._result: list[Any] = []

    def __await__(self) -> Any:  # noqa: ANN401
        return self._ends[0].__await__()

    def resolve(self, result: Any) -> None:  # noqa: ANN401
        """Acknowledge or answer it."""
        self._result = [result]
        for end in self._ends:
            self._loop.call_soon_threadsafe(_settle, end, result)

    def unsupported_reason(self, error: Exception) -> None:
        """Let the sender know that it is not taken."""
        self._loop.call_soon_threadsafe(_settle, self._ends[0], error)

    def echo(self, letter: RayLetter) -> None:
        """The same letter once more: it gets what this one gets."""
        if self._result:
            letter.resolve(self._result[0])
        else:
            self._ends += letter._ends


def _settle(end: asyncio.Future[Any], result: Any) -> None:  # noqa: ANN401
    if end.done():
        return
    if isinstance(result, Exception):
        end.set_exception(result)
    else:
        end.set_result(result)


class RayServing:
    """The server's end of the edge from one host."""

    listening = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.inbox: deque[RayLetter] = deque()
        self.zero_copy: tuple[bytes, ...] = ()  # of no use: Ray's memory is not used again while it is read
        self._life, self._next = -1, 1
        self._early: dict[int, RayLetter] = {}
        self._known: dict[int, RayLetter] = {}  # those whose sender may not have its answer yet

    def take(self, life: int, settled: int, letter: RayLetter) -> None:
        """Put a letter where it belongs: in its turn, once, and only of the newest life of the asker."""
        if life < self._life:
            letter.unsupported_reason(Replaced(f"a newer {self.name} has taken over"))
            return
        if life > self._life:
            self._life, self._next = life, 1
            self.inbox = deque(old for old in self.inbox if old.kind == TELL)
            self._early.clear()
            self._known.clear()
        for order in [order for order in self._known if order < settled]:
            del self._known[order]
        if (known := self._known.get(letter.order)) is not None:
            known.echo(letter)
            return
        if letter.order < self._next:
            letter.resolve(None)
            return
        self._known[letter.order] = self._early[letter.order] = letter
        while (ready := self._early.pop(self._next, None)) is not None:
            self.inbox.append(ready)
            self._next += 1

    def pump(self, everything: bool = False) -> None:
        """Nothing: letters come by themselves."""

    def open(self, letter: RayLetter) -> Any:  # noqa: ANN401
        """Copy a letter out; a told one is acknowledged, so that its sender may send more."""
        value = opened(*letter.body)
        letter.body = (b"", None)
        if letter.kind == TELL:
            letter.resolve(None)
        return value

    def done(self, letter: RayLetter) -> None:
        """Nothing was lent."""


class RayAnswers:
    """Sends answers; a large one that many get lies in Ray's store once."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[tuple[int, ...], Packed, Any]] = {}

    def send(self, edge: RayServing, letter: RayLetter, answer: Any, shared: tuple[str, int] | None) -> None:  # noqa: ANN401
        """Answer a letter; never waits."""
        packed = pack(answer)
        if shared is None or packed.size < SHARED:
            letter.resolve(body(packed))
            return
        name, changes = shared
        key = (changes, packed.size, *packed.seen)
        kept = self._kept.get(name)
        if kept is None or kept[0] != key:
            import ray

            kept = self._kept[name] = (key, packed, ray.put(body(packed)[1]))
        letter.resolve((bytes(packed.meta), [kept[2]]))
