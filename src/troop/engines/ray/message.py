"""Messages over Ray: the body of a message, and a received message that resolves to its result."""

from __future__ import annotations

import asyncio
from typing import Any

from troop.engines.rpc.codec import Packed, address_of
from troop.engines.rpc.decode import unpack

Body = tuple[bytes, Any]
"""An encoded value: its metadata, and the data of all its arrays as one uint8 NumPy array, or None."""


class StaleGeneration(Exception):
    """The server rejects a message because it has received one from a newer generation of the same client."""


def to_body(packed: Packed) -> Body:
    """Copy the arrays of a packed value into one NumPy array: Ray sends it 2-6 times faster than tensors."""
    if not packed.size:
        return bytes(packed.meta), None
    import numpy

    block = bytearray(packed.size)
    packed.copy_to(address_of(block))
    return bytes(packed.meta), numpy.frombuffer(block, dtype=numpy.uint8)


def from_body(meta: bytes, block: Any) -> Any:  # noqa: ANN401
    """Decode a value; copies the arrays, because memory of Ray's object store is read-only."""
    return unpack(meta) if block is None else unpack(meta, bytearray(block))


class RayMessage:
    """A received call or one-way message. The event loop that received it awaits it for its result."""

    def __init__(self, sequence: int, kind: int, body: Body) -> None:
        self.sequence, self.kind, self.body = sequence, kind, body
        self.size = len(body[0]) + (0 if body[1] is None else len(body[1]))
        self._loop = asyncio.get_running_loop()
        self._futures: list[asyncio.Future[Any]] = [self._loop.create_future()]  # own, then of duplicates
        self._result: list[Any] = []  # empty before `resolve`

    def __await__(self) -> Any:  # noqa: ANN401
        return self._futures[0].__await__()

    def resolve(self, result: Any) -> None:  # noqa: ANN401
        """Return the reply, or None as an acknowledgement, to the client; thread-safe."""
        self._result = [result]
        for future in self._futures:
            self._loop.call_soon_threadsafe(_set_result, future, result)

    def reject(self, error: Exception) -> None:
        """Raise `error` at the client; thread-safe."""
        self._loop.call_soon_threadsafe(_set_result, self._futures[0], error)

    def add_duplicate(self, duplicate: RayMessage) -> None:
        """Resolve a second transmission of this message with the result of this one."""
        if self._result:
            duplicate.resolve(self._result[0])
        else:
            self._futures += duplicate._futures


def _set_result(future: asyncio.Future[Any], result: Any) -> None:  # noqa: ANN401
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
