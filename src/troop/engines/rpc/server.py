"""The server's end of an edge, and the slots in which answers travel."""

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
    """The slots in which a host's answers travel; one slot may serve many askers."""

    def __init__(self, max_free_bytes: int, edges: list[ServerConnection]) -> None:
        self.slots, self._edges = SlotPool(max_free_bytes), edges
        self.kept: dict[str, tuple[tuple[int, ...], Slot]] = {}  # answers that the next asker may share
        self._readers: dict[int, tuple[Slot, list[tuple[ServerConnection, int, int]]]] = {}

    def send(
        self, edge: ServerConnection, message: Message, answer: Any, shared: tuple[str, int] | None
    ) -> None:
        """Answer a letter; never waits. One slot serves all who get the same answer."""
        packed = pack(answer)
        slot: Slot | None = None
        written = False
        if needed := slot_bytes(packed):
            slot, written = self._slot(packed, needed, shared)
            for number in self.slots.retired:
                for other in self._edges:
                    other.unmap(number)
            self.slots.retired.clear()
        edge.answer(message.number, packed, slot, self, written)

    def _slot(self, packed: Packed, needed: int, shared: tuple[str, int] | None) -> tuple[Slot, bool]:
        """Where an answer goes; True if it lies there already because someone else just had the same."""
        if shared is None:
            return self.take(needed), False
        name, changes = shared
        key = (changes, packed.size, *packed.seen)
        held = self.kept.get(name)
        if held is not None and held[0] == key:
            return held[1], True
        self.keep(name, key, slot := self.take(needed))
        return slot, False

    def keep(self, name: str, key: tuple[int, ...], slot: Slot) -> None:
        """Hold on to an answer until the next of that name."""
        before = self.kept.pop(name, None)
        self.kept[name] = (key, slot)
        if before is not None and before[1].number not in self._readers:
            before[1].busy = False

    def take(self, size: int) -> Slot:
        """A slot that nobody reads any more."""
        return self.slots.take(size, self._settle)

    def read_by(self, slot: Slot, edge: ServerConnection, answer: int) -> None:
        """The slot is busy until this answer was taken, or its asker replaced."""
        self._readers.setdefault(slot.number, (slot, []))[1].append((edge, edge.generation, answer))

    def _settle(self) -> None:
        for number, (slot, readers) in list(self._readers.items()):
            readers[:] = [r for r in readers if not r[0].has_taken(r[1], r[2])]
            if not readers:
                del self._readers[number]
                slot.busy = any(slot is kept for _, kept in self.kept.values())


class ServerConnection:
    """The server's end of the edge from one host."""

    def __init__(self, name: str) -> None:
        self.name, self.generation = name, 0
        self.connection: Connection | None = None
        self.counters: FlowCounters | None = None
        self.inbox: deque[Message] = deque()
        self.zero_copy_prefixes: tuple[bytes, ...] = ()  # how calls begin to whose methods memory may be lent
        self.mapped = MappedSlots()
        self._known: set[int] = set()
        self._answers = 0

    @property
    def client_connected(self) -> bool:
        """Whether whoever asked is still there."""
        return self.connection is not None and self.connection.open

    def attach(self, connection: Connection, counters: int) -> None:
        """A new asker, or the first: what the last one told is still handled, its questions are not."""
        if self.connection is not None:
            self.read_incoming(drain=True)
            self.connection.close()
        self.inbox = deque(message for message in self.inbox if message.kind == SEND)
        for message in self.inbox:
            message.number = 0  # of another ledger
        self.connection, self.counters, self.mapped = connection, FlowCounters(counters), MappedSlots()
        self._known.clear()
        self.generation += 1
        self._answers = 0

    def read_incoming(self, drain: bool = False) -> bool:
        """Take in what came, unopened, up to the first question or `everything`; whether any waits."""
        connection, counters = self.connection, self.counters
        while connection is not None and connection.open and (came := connection.receive()) is not None:
            message = Message(came[0], self.mapped, came[1])
            if message.kind == UNMAP:
                self.mapped.unmap(message.slot)
            else:
                self.inbox.append(message)
                # A look that finds nothing costs as much as one that does: spared after the last letter sent
                # and after a question, whose asker mostly waits; if there is more, the next poll says so.
                last = counters is None or message.number >= counters.words[SENT]
                if (last or message.kind == CALL) and not drain:
                    break
        return bool(self.inbox)

    def decode(self, message: Message) -> Any:  # noqa: ANN401
        """Copy a letter out, and the asker may reuse its memory; what is only lent it may after `done`."""
        if message.number and self.counters is not None:
            self.counters.words[DECODED] = message.number
        value = message.decode(self.zero_copy_prefixes, self.generation)
        if not message.lent:
            self._handled(message)
        return value

    def release(self, message: Message) -> None:
        """The letter was handled; whoever lent it may have been replaced meanwhile."""
        if message.lent == self.generation:
            self._handled(message)

    def _handled(self, message: Message) -> None:
        if message.number and self.counters is not None and self.connection is not None:
            words = self.counters.words
            words[HANDLED] = message.number
            words[HANDLED_BYTES] += message.weight
            if words[CLIENT_WAITING]:
                self.connection.send(encode_wake())

    def has_taken(self, generation: int, answer: int) -> bool:
        """Whether the asker has copied this answer, or is no longer the one that was answered."""
        if (
            generation != self.generation
            or self.counters is None
            or self.connection is None
            or not self.connection.open
        ):
            return True
        return bool(self.counters.words[REPLY_COPIED] >= answer)

    def answer(
        self, reply_to: int, packed: Packed, slot: Slot | None, replies: ReplySlots, written: bool
    ) -> None:
        """Send an answer; never waits. `laid`: the slot already holds it."""
        if self.connection is None:
            return
        self._answers += 1
        if slot is not None:
            replies.read_by(slot, self, self._answers)
        fds: tuple[int, ...] = ()
        if slot is not None and slot.number not in self._known:
            self._known.add(slot.number)
            fds = (slot.fd,)
        if written:
            packed.buffers = []  # the memory holds them; only the description is sent again
        self.connection.send(encode(REPLY, packed, self._answers, reply_to, slot), fds)

    def unmap(self, number: int) -> None:
        """Tell the asker that a slot is gone."""
        if self.connection is not None and number in self._known:
            self._known.discard(number)
            self.connection.send(encode_unmap(number))
