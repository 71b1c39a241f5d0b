"""The asker's end of an edge: keeps what is not handled yet, waits while there is no room."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from troop.engines.rpc.codec import pack_call
from troop.engines.rpc.connection import Connection
from troop.engines.rpc.message import CALL, REPLY, SEND, UNMAP, Message, encode, encode_unmap, slot_bytes
from troop.engines.rpc.shared_memory import (
    CLIENT_WAITING,
    DECODED,
    HANDLED,
    HANDLED_BYTES,
    REPLY_COPIED,
    SENT,
    SENT_BYTES,
    FlowCounters,
    MappedSlots,
    Slot,
    SlotPool,
)


class ClientWaiter(Protocol):
    """Whoever can wait for an edge without being deaf to the launcher."""

    def wait(self, edge: Client, done: Callable[[], bool], why: object, full: bool = False) -> None:
        """Return once `done()`; TimeoutError naming `why` if that takes too long."""
        ...


@dataclass(slots=True)
class InFlight:
    """A letter that may have to be sent again."""

    number: int
    message: bytes
    size: int
    slot: Slot | None


class Reply:
    """An answer under way."""

    __slots__ = ("_edge", "_to", "done", "value")

    def __init__(self, edge: Client, to: tuple[str, str]) -> None:
        self._edge, self._to = edge, to
        self.done, self.value = False, None

    def ready(self) -> bool:
        """Whether it is here."""
        if not self.done:
            self._edge.read_incoming(drain=False)
        return self.done

    def result(self) -> Any:  # noqa: ANN401
        """The answer, waited for if need be."""
        if not self.done:
            self._edge.waiter.wait(self._edge, self._here, self)
        return self.value

    def _here(self) -> bool:
        return self.done

    def __str__(self) -> str:
        return "the answer of {}.{}()".format(*self._to)


class Client:
    """The asker's end of the edge to one host.

    Everything sent is kept until the server has copied it, calls until they are answered; if the server is
    replaced, all that is sent again, in order. A told letter that was being handled is not repeated.
    """

    def __init__(self, name: str, waiter: ClientWaiter, max_bytes: int) -> None:
        self.name, self.waiter, self.max_bytes = name, waiter, max_bytes
        self.connection: Connection | None = None
        self.slots, self.mapped = SlotPool(max_bytes), MappedSlots()
        self.pending: dict[int, Reply] = {}
        self._counters: FlowCounters | None = None
        self._number = 0
        self._unhandled: deque[InFlight] = deque()
        self._unanswered: dict[int, InFlight] = {}
        self._known: set[int] = set()  # slots whose memory the server has

    def attach(self, connection: Connection, counters: int) -> None:
        """A new server, or the first: what the last one left unopened or unanswered is sent again."""
        self._settle()
        self._forgive()
        if self.connection is not None:
            self.read_incoming()
            self.connection.close()
        again = sorted(self._unanswered.values(), key=lambda sent: sent.number) + list(self._unhandled)
        self.connection, self._counters, self.mapped = connection, FlowCounters(counters), MappedSlots()
        self._known.clear()
        self._unanswered.clear()
        self._unhandled.clear()
        for sent in again:
            self._send(sent)

    def call(self, node: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reply:
        """Send a call; its reply comes later."""
        number = self._post(CALL, node, method, args, kwargs)
        reply = self.pending[number] = Reply(self, (node, method))
        if self.connection is not None and self.connection.backlogged:
            self._drain(node)
        return reply

    def send(self, node: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Send a letter that is not answered; waits while the mailbox is full."""
        self._post(SEND, node, method, args, kwargs)
        if self.connection is not None and self.connection.backlogged:
            self._drain(node)

    def _post(self, kind: int, node: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        packed = pack_call(node, method, args, kwargs)
        size = len(packed.meta) + packed.size
        if not self._room(size):
            self.waiter.wait(self, lambda: self._room(size), f"room in the mailbox of {node}", full=True)
        slot = self.slots.take(needed, self._settle) if (needed := slot_bytes(packed)) else None
        self._number = number = self._number + 1
        self._send(InFlight(number, encode(kind, packed, number, 0, slot), size, slot))
        return number

    def _room(self, size: int) -> bool:
        """Whether a letter fits; a mailbox that is empty takes any."""
        if self._counters is None or self.connection is None or not self.connection.open:
            return False
        self._settle()
        words = self._counters.words
        waiting = words[SENT_BYTES] - words[HANDLED_BYTES]
        fits = waiting == 0 or waiting + size <= self.max_bytes
        words[CLIENT_WAITING] = 0 if fits else 1
        return fits

    def _send(self, sent: InFlight) -> None:
        assert self.connection is not None and self._counters is not None
        self._unhandled.append(sent)
        words, slot, connection = self._counters.words, sent.slot, self.connection
        words[SENT] = sent.number
        words[SENT_BYTES] += sent.size
        while self.slots.retired:
            self._known.discard(number := self.slots.retired.pop())
            connection.send(encode_unmap(number))
        if slot is None or slot.number in self._known:
            connection.send(sent.message)
        else:
            self._known.add(slot.number)
            connection.send(sent.message, (slot.fd,))

    def _drain(self, node: str) -> None:
        """Wait for the kernel, which took less than was sent."""
        why = f"room in the mailbox of {node}"
        self.waiter.wait(
            self, lambda: self.connection is None or not self.connection.backlogged, why, full=True
        )

    def _settle(self) -> None:
        """Let go of what the server has copied."""
        handled = self._counters.words[HANDLED] if self._counters is not None else 0
        while self._unhandled and self._unhandled[0].number <= handled:
            sent = self._unhandled.popleft()
            if sent.number in self.pending:
                self._unanswered[sent.number] = sent
            elif sent.slot is not None:
                sent.slot.busy = False

    def _forgive(self) -> None:
        """Drop what was told and opened: it may be what has killed the server."""
        opened = self._counters.words[DECODED] if self._counters is not None else 0
        for sent in [sent for sent in self._unhandled if sent.number <= opened]:
            if sent.number not in self.pending:
                self._unhandled.remove(sent)
                if sent.slot is not None:
                    sent.slot.busy = False

    def read_incoming(self, drain: bool = True) -> bool:
        """Take in what came, or only answers still wanted; whether there was one other than None."""
        told = False
        # The last look, which finds nothing, costs as much as all others: spared if no answer is wanted.
        while (
            (drain or self.pending)
            and self.connection is not None
            and self.connection.open
            and (came := self.connection.receive()) is not None
        ):
            message = Message(came[0], self.mapped, came[1])
            if message.kind == REPLY:
                told |= self._answered(message)
            elif message.kind == UNMAP:
                self.mapped.unmap(message.slot)
        return told

    def _answered(self, message: Message) -> bool:
        value = message.decode()
        assert self._counters is not None
        self._counters.words[REPLY_COPIED] = message.number
        reply = self.pending.pop(message.reply_to, None)
        sent = self._unanswered.pop(message.reply_to, None)
        if sent is not None and sent.slot is not None:
            sent.slot.busy = False
        if reply is not None:
            reply.value, reply.done = value, True
        return value is not None
