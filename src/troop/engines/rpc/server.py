"""ServerConnection: the serving end of an edge, and ReplySlots: the shared memory that carries replies."""

from __future__ import annotations

from collections import deque
from typing import Any

from troop.engines.rpc.codec import Packed, pack
from troop.engines.rpc.connection import Connection
from troop.engines.rpc.message import (
    CALL,
    REPLY,
    SEND,
    UNMAP,
    Message,
    encode,
    encode_unmap,
    encode_wake,
    slot_bytes,
)
from troop.engines.rpc.shared_memory import (
    CLIENT_WAITING,
    DECODED,
    HANDLED,
    HANDLED_BYTES,
    REPLY_COPIED,
    SENT,
    FlowCounters,
    MappedSlots,
    Slot,
    SlotPool,
)


class ReplySlots:
    """Sends the replies of a host. A large reply is written to a slot, which several clients may read."""

    def __init__(self, max_free_bytes: int, edges: list[ServerConnection]) -> None:
        self.slots, self._edges = SlotPool(max_free_bytes), edges
        # Newest reply of each readonly method: the key that identifies it and the slot that holds it.
        self._shared: dict[str, tuple[tuple[int, ...], Slot]] = {}
        # By slot number: the slot and the clients that still read it, each with generation and reply number.
        self._readers: dict[int, tuple[Slot, list[tuple[ServerConnection, int, int]]]] = {}

    def send(
        self,
        edge: ServerConnection,
        message: Message,
        result: Any,  # noqa: ANN401
        shared: tuple[str, int] | None,
    ) -> None:
        """Reply to a call; never blocks. Clients that get the same `shared` result read the same slot."""
        packed = pack(result)
        slot: Slot | None = None
        written = False
        if needed := slot_bytes(packed):
            slot, written = self._slot_for(packed, needed, shared)
            for number in self.slots.retired:
                for other in self._edges:
                    other.unmap(number)
            self.slots.retired.clear()
        edge.reply(message.number, packed, slot, self, written)

    def _slot_for(self, packed: Packed, needed: int, shared: tuple[str, int] | None) -> tuple[Slot, bool]:
        """Return the slot for a reply and whether it already holds the reply."""
        if shared is None:
            return self._acquire(needed), False
        method, changes = shared
        key = (changes, packed.size, *packed.arrays)  # the ids of all arrays
        newest = self._shared.get(method)
        if newest is not None and newest[0] == key:
            return newest[1], True
        slot = self._acquire(needed)
        self._shared[method] = (key, slot)
        if newest is not None and newest[1].number not in self._readers:
            newest[1].busy = False
        return slot, False

    def _acquire(self, size: int) -> Slot:
        return self.slots.acquire(size, self._release_copied)

    def add_reader(self, slot: Slot, edge: ServerConnection, reply_number: int) -> None:
        """Keep the slot busy until the client of `edge` has copied this reply or was replaced."""
        self._readers.setdefault(slot.number, (slot, []))[1].append((edge, edge.generation, reply_number))

    def _release_copied(self) -> None:
        for number, (slot, readers) in list(self._readers.items()):
            readers[:] = [reader for reader in readers if not reader[0].reply_copied(reader[1], reader[2])]
            if not readers:
                del self._readers[number]
                slot.busy = any(slot is shared for _, shared in self._shared.values())


class ServerConnection:
    """The serving end of the edge from one client host."""

    def __init__(self, name: str) -> None:
        self.name = name  # host of the client
        self.generation = 0  # how many processes of the client have been attached
        self.connection: Connection | None = None
        self.counters: FlowCounters | None = None
        self.inbox: deque[Message] = deque()
        self.zero_copy_prefixes: tuple[bytes, ...] = ()  # call prefixes of all zero-copy methods
        self.mapped_slots = MappedSlots()
        self._known_slots: set[int] = set()  # numbers of reply slots that the client has mapped
        self._replies = 0  # sent to the current client

    @property
    def client_connected(self) -> bool:
        """Whether the client that sent the messages of the inbox can still receive replies."""
        return self.connection is not None and self.connection.open

    def attach(self, connection: Connection, counters_fd: int) -> None:
        """Connect to the first process of the client or to a replacement.

        One-way sends of the old process are still handled, its calls are dropped.
        """
        if self.connection is not None:
            self.read_incoming(drain=True)
            self.connection.close()
        self.inbox = deque(message for message in self.inbox if message.kind == SEND)
        for message in self.inbox:
            message.number = 0  # must not advance the flow counters of the new client
        self.connection, self.counters, self.mapped_slots = (
            connection,
            FlowCounters(counters_fd),
            MappedSlots(),
        )
        self._known_slots.clear()
        self.generation += 1
        self._replies = 0

    def read_incoming(self, drain: bool = False) -> bool:
        """Move received messages to the inbox without decoding them; return whether the inbox has any.

        Without `drain`, stop after a call, whose client usually waits for the reply, and after the newest
        message that was sent. This saves the last receive, which finds nothing and costs as much as one that
        does; if more messages arrive, the next poll reports them.
        """
        connection, counters = self.connection, self.counters
        while connection is not None and connection.open and (received := connection.receive()) is not None:
            message = Message(received[0], self.mapped_slots, received[1])
            if message.kind == UNMAP:
                self.mapped_slots.unmap(message.slot)
            else:
                self.inbox.append(message)
                newest = counters is None or message.number >= counters.words[SENT]
                if (newest or message.kind == CALL) and not drain:
                    break
        return bool(self.inbox)

    def decode(self, message: Message) -> Any:  # noqa: ANN401
        """Return the content of a message: node, method, args and kwargs.

        If the content is a copy, the client may reuse the slot at once; if it is a view, after `release`.
        """
        if message.number and self.counters is not None:
            self.counters.words[DECODED] = message.number
        value = message.decode(self.zero_copy_prefixes, self.generation)
        if not message.viewed_generation:
            self._mark_handled(message)
        return value

    def release(self, message: Message) -> None:
        """Let the client reuse the slot of a message that was viewed, unless the client was replaced."""
        if message.viewed_generation == self.generation:
            self._mark_handled(message)

    def _mark_handled(self, message: Message) -> None:
        if message.number and self.counters is not None and self.connection is not None:
            words = self.counters.words
            words[HANDLED] = message.number
            words[HANDLED_BYTES] += message.total_bytes
            if words[CLIENT_WAITING]:
                self.connection.send(encode_wake())

    def reply_copied(self, generation: int, reply_number: int) -> bool:
        """Return whether the client has copied a reply, or the client of this generation is gone."""
        if (
            generation != self.generation
            or self.counters is None
            or self.connection is None
            or not self.connection.open
        ):
            return True
        return bool(self.counters.words[REPLY_COPIED] >= reply_number)

    def reply(
        self, reply_to: int, packed: Packed, slot: Slot | None, reply_slots: ReplySlots, written: bool
    ) -> None:
        """Send a reply; never blocks. `written` means that the slot already holds the arrays."""
        if self.connection is None:
            return
        self._replies += 1
        if slot is not None:
            reply_slots.add_reader(slot, self, self._replies)
        fds: tuple[int, ...] = ()
        if slot is not None and slot.number not in self._known_slots:
            self._known_slots.add(slot.number)
            fds = (slot.fd,)
        if written:
            packed.buffers = []  # only the description is sent again
        self.connection.send(encode(REPLY, packed, self._replies, reply_to, slot), fds)

    def unmap(self, number: int) -> None:
        """Tell the client to unmap a reply slot that will not be used again."""
        if self.connection is not None and number in self._known_slots:
            self._known_slots.discard(number)
            self.connection.send(encode_unmap(number))
