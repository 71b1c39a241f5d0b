"""The server's end of an edge over Ray: letters once, in turn, and of the newest life of their sender."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from troop.engines.ray.client import Body, StaleGeneration, from_body, to_body
from troop.engines.rpc.codec import Packed, pack
from troop.engines.rpc.message import SEND

SHARED = 100 << 10  # bytes from which one copy of an answer serves all who get the same


class RayMessage:
    """A letter that came, and whoever waits for what becomes of it."""

    def __init__(self, order: int, kind: int, to_body: Body) -> None:
        self.order, self.kind, self.to_body = order, kind, to_body
        self.size = len(to_body[0]) + (0 if to_body[1] is None else len(to_body[1]))
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

    def reject(self, error: Exception) -> None:
        """Let the sender know that it is not taken."""
        self._loop.call_soon_threadsafe(_settle, self._ends[0], error)

    def echo(self, message: RayMessage) -> None:
        """The same letter once more: it gets what this one gets."""
        if self._result:
            message.resolve(self._result[0])
        else:
            self._ends += message._ends


def _settle(end: asyncio.Future[Any], result: Any) -> None:  # noqa: ANN401
    if end.done():
        return
    if isinstance(result, Exception):
        end.set_exception(result)
    else:
        end.set_result(result)


class RayServerConnection:
    """The server's end of the edge from one host."""

    client_connected = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.inbox: deque[RayMessage] = deque()
        self.zero_copy_prefixes: tuple[
            bytes, ...
        ] = ()  # of no use: Ray's memory is not used again while it is read
        self._life, self._next = -1, 1
        self._early: dict[int, RayMessage] = {}
        self._known: dict[int, RayMessage] = {}  # those whose sender may not have its answer yet

    def take(self, generation: int, settled: int, message: RayMessage) -> None:
        """Put a letter where it belongs: in its turn, once, and only of the newest life of the asker."""
        if generation < self._life:
            message.reject(StaleGeneration(f"a newer {self.name} has taken over"))
            return
        if generation > self._life:
            self._life, self._next = generation, 1
            self.inbox = deque(old for old in self.inbox if old.kind == SEND)
            self._early.clear()
            self._known.clear()
        for order in [order for order in self._known if order < settled]:
            del self._known[order]
        if (known := self._known.get(message.order)) is not None:
            known.echo(message)
            return
        if message.order < self._next:
            message.resolve(None)
            return
        self._known[message.order] = self._early[message.order] = message
        while (ready := self._early.pop(self._next, None)) is not None:
            self.inbox.append(ready)
            self._next += 1

    def read_incoming(self, drain: bool = False) -> None:
        """Nothing: letters come by themselves."""

    def decode(self, message: RayMessage) -> Any:  # noqa: ANN401
        """Copy a letter out; a told one is acknowledged, so that its sender may send more."""
        value = from_body(*message.to_body)
        message.to_body = (b"", None)
        if message.kind == SEND:
            message.resolve(None)
        return value

    def release(self, message: RayMessage) -> None:
        """Nothing was lent."""


class RayReplySender:
    """Sends answers; a large one that many get lies in Ray's store once."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[tuple[int, ...], Packed, Any]] = {}

    def send(
        self, edge: RayServerConnection, message: RayMessage, answer: Any, shared: tuple[str, int] | None
    ) -> None:
        """Answer a letter; never waits."""
        packed = pack(answer)
        if shared is None or packed.size < SHARED:
            message.resolve(to_body(packed))
            return
        name, changes = shared
        key = (changes, packed.size, *packed.seen)
        kept = self._kept.get(name)
        if kept is None or kept[0] != key:
            import ray

            kept = self._kept[name] = (key, packed, ray.put(to_body(packed)[1]))
        message.resolve((bytes(packed.meta), [kept[2]]))
