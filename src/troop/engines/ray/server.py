"""RayServerConnection: the serving end of an edge over Ray. RayReplySender: sends its replies."""

from __future__ import annotations

from collections import deque
from typing import Any

from troop.engines.ray.message import RayMessage, StaleGeneration, from_body, to_body
from troop.engines.rpc.codec import Packed, pack
from troop.engines.rpc.message import SEND

SHARED_REPLY_BYTES = 100 << 10  # replies of at least this size are stored once for all clients


class RayServerConnection:
    """The serving end of the edge from one host.

    It delivers each message once, in the order of the sequence numbers, and only from the newest generation
    of the client.
    """

    client_connected = True

    def __init__(self, name: str) -> None:
        self.name = name  # host of the client
        self.inbox: deque[RayMessage] = deque()
        self.zero_copy_prefixes: tuple[
            bytes, ...
        ] = ()  # unused: Ray does not reuse memory that is still read
        self._generation, self._next_sequence = -1, 1
        self._out_of_order: dict[int, RayMessage] = {}  # received before their predecessors
        self._unconfirmed: dict[int, RayMessage] = {}  # the client may not have received their result

    def deliver(self, generation: int, oldest: int, message: RayMessage) -> None:
        """Append a message to the inbox once all earlier ones are there; answer a repeated one.

        `oldest` is the lowest sequence number whose result the client has not received.
        """
        if generation < self._generation:
            message.reject(StaleGeneration(f"a newer {self.name} has taken over"))
            return
        if generation > self._generation:
            self._generation, self._next_sequence = generation, 1
            self.inbox = deque(earlier for earlier in self.inbox if earlier.kind == SEND)
            self._out_of_order.clear()
            self._unconfirmed.clear()
        for sequence in [sequence for sequence in self._unconfirmed if sequence < oldest]:
            del self._unconfirmed[sequence]
        if (original := self._unconfirmed.get(message.sequence)) is not None:
            original.add_duplicate(message)
            return
        if message.sequence < self._next_sequence:
            message.resolve(None)
            return
        self._unconfirmed[message.sequence] = self._out_of_order[message.sequence] = message
        while (next_message := self._out_of_order.pop(self._next_sequence, None)) is not None:
            self.inbox.append(next_message)
            self._next_sequence += 1

    @property
    def generation(self) -> int:
        """Number of the client's incarnation."""
        return self._generation

    def read_incoming(self, drain: bool = False) -> None:
        """Do nothing: Ray calls `RayHost.receive_message` for every message."""

    def decode(self, message: RayMessage) -> Any:  # noqa: ANN401
        """Decode a message; acknowledge a one-way message, which frees space in the mailbox."""
        value = from_body(*message.body)
        message.body = (b"", None)
        if message.kind == SEND:
            message.resolve(None)
        return value

    def release(self, message: RayMessage) -> None:
        """Do nothing: `decode` copies, so no method holds views of the message."""


class RayReplySender:
    """Sends replies; Ray's object store holds a large reply of a `@readonly` method once for all clients."""

    def __init__(self) -> None:
        # Newest shared reply of each method: its key, its arrays (kept alive because the key contains their
        # ids) and the object reference.
        self._shared: dict[str, tuple[tuple[int, ...], Packed, Any]] = {}

    def send(
        self,
        edge: RayServerConnection,
        message: RayMessage,
        result: Any,  # noqa: ANN401
        shared: tuple[str, int] | None,
    ) -> None:
        """Reply to a call without blocking; `shared` is as in `ReplySender.send`."""
        packed = pack(result)
        if shared is None or packed.size < SHARED_REPLY_BYTES:
            message.resolve(to_body(packed))
            return
        method, changes = shared
        key = (changes, packed.size, *packed.arrays)
        stored = self._shared.get(method)
        if stored is None or stored[0] != key:
            import ray

            stored = self._shared[method] = (key, packed, ray.put(to_body(packed)[1]))
        message.resolve((bytes(packed.meta), [stored[2]]))
