"""Client: the calling end of an edge. It limits the bytes in flight and resends to a restarted server."""

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
    """Blocks a role until something happens on an edge, while commands of the driver are still handled."""

    def wait(self, client: Client, done: Callable[[], bool], reason: object, blocked: bool = False) -> None:
        """Return once `done()` holds; `blocked` attributes the time to back-pressure instead of to a reply.

        Raises TimeoutError with `str(reason)` after the wait limit of the host.
        """
        ...


@dataclass(slots=True)
class InFlight:
    """A message that may have to be sent again."""

    number: int
    encoded: bytes
    size: int  # bytes of description and arrays
    slot: Slot | None


class Reply:
    """The future of a remote call."""

    __slots__ = ("_client", "_target", "done", "value")

    def __init__(self, client: Client, target: tuple[str, str]) -> None:
        self._client, self._target = client, target
        self.done, self.value = False, None

    def ready(self) -> bool:
        """Return whether `result` returns without blocking."""
        if not self.done:
            self._client.read_incoming(drain=False)
        return self.done

    def result(self) -> Any:  # noqa: ANN401
        """Return the result of the call; block until it arrives."""
        if not self.done:
            self._client.waiter.wait(self._client, self._is_done, self)
        return self.value

    def _is_done(self) -> bool:
        return self.done

    def __str__(self) -> str:
        return "the reply of {}.{}()".format(*self._target)


class Client:
    """The calling end of the edge to one host.

    A one-way send is kept until the server has handled it, a call until its reply arrives. When the server is
    replaced, the client sends all kept messages again, in order, except one-way sends that the old server had
    already decoded: such a message may be what has killed it.
    """

    def __init__(self, name: str, waiter: ClientWaiter, max_bytes: int) -> None:
        self.name, self.waiter, self.max_bytes = name, waiter, max_bytes
        self.connection: Connection | None = None
        self.slots, self.mapped_slots = SlotPool(max_bytes), MappedSlots()
        self.pending: dict[int, Reply] = {}  # by number of the call
        self._counters: FlowCounters | None = None
        self._number = 0
        self._unhandled: deque[InFlight] = deque()
        self._unanswered: dict[int, InFlight] = {}  # calls that the server has handled, by number
        self._known_slots: set[int] = set()  # numbers of slots that the server has mapped

    def attach(self, connection: Connection, counters_fd: int) -> None:
        """Connect to the first process of the server or to a replacement, and resend the kept messages."""
        self._release_handled()
        self._drop_decoded_sends()
        if self.connection is not None:
            self.read_incoming()
            self.connection.close()
        unfinished = sorted(self._unanswered.values(), key=lambda call: call.number) + list(self._unhandled)
        self.connection, self._counters, self.mapped_slots = (
            connection,
            FlowCounters(counters_fd),
            MappedSlots(),
        )
        self._known_slots.clear()
        self._unanswered.clear()
        self._unhandled.clear()
        for message in unfinished:
            self._transmit(message)

    def call(self, node: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reply:
        """Send a call and return its future; block while the server's mailbox is full."""
        number = self._submit(CALL, node, method, args, kwargs)
        reply = self.pending[number] = Reply(self, (node, method))
        if self.connection is not None and self.connection.backlogged:
            self._wait_backlog(node)
        return reply

    def send(self, node: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Send a one-way message; block while the server's mailbox is full."""
        self._submit(SEND, node, method, args, kwargs)
        if self.connection is not None and self.connection.backlogged:
            self._wait_backlog(node)

    def _submit(
        self, kind: int, node: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> int:
        packed = pack_call(node, method, args, kwargs)
        size = len(packed.meta) + packed.size
        if not self._fits(size):
            self.waiter.wait(self, lambda: self._fits(size), f"space in the mailbox of {node}", blocked=True)
        slot = self.slots.acquire(needed, self._release_handled) if (needed := slot_bytes(packed)) else None
        self._number = number = self._number + 1
        self._transmit(InFlight(number, encode(kind, packed, number, 0, slot), size, slot))
        return number

    def _fits(self, size: int) -> bool:
        """Return whether a message may be sent; an empty mailbox accepts a message of any size."""
        if self._counters is None or self.connection is None or not self.connection.open:
            return False
        self._release_handled()
        words = self._counters.words
        unhandled = words[SENT_BYTES] - words[HANDLED_BYTES]
        fits = unhandled == 0 or (unhandled + size <= self.max_bytes and not self.slots.exhausted)
        words[CLIENT_WAITING] = 0 if fits else 1
        return fits

    def _transmit(self, message: InFlight) -> None:
        assert self.connection is not None and self._counters is not None
        self._unhandled.append(message)
        words, slot, connection = self._counters.words, message.slot, self.connection
        words[SENT] = message.number
        words[SENT_BYTES] += message.size
        while self.slots.retired:
            self._known_slots.discard(number := self.slots.retired.pop())
            connection.send(encode_unmap(number))
        if slot is None or slot.number in self._known_slots:
            connection.send(message.encoded)
        else:
            self._known_slots.add(slot.number)
            connection.send(message.encoded, (slot.fd,))

    def _wait_backlog(self, node: str) -> None:
        """Block until the kernel has accepted all messages."""
        reason = f"space in the mailbox of {node}"
        self.waiter.wait(
            self, lambda: self.connection is None or not self.connection.backlogged, reason, blocked=True
        )

    def _release_handled(self) -> None:
        """Free the slots of messages that the server has handled; those of calls stay until their reply."""
        handled = self._counters.words[HANDLED] if self._counters is not None else 0
        while self._unhandled and self._unhandled[0].number <= handled:
            message = self._unhandled.popleft()
            if message.number in self.pending:
                self._unanswered[message.number] = message
            elif message.slot is not None:
                message.slot.busy = False

    def _drop_decoded_sends(self) -> None:
        """Drop one-way sends that the server has decoded but not handled: they may be what has killed it."""
        decoded = self._counters.words[DECODED] if self._counters is not None else 0
        for message in [message for message in self._unhandled if message.number <= decoded]:
            if message.number not in self.pending:
                self._unhandled.remove(message)
                if message.slot is not None:
                    message.slot.busy = False

    def read_incoming(self, drain: bool = True) -> bool:
        """Read received messages; return whether a reply other than None was among them.

        With `drain=False`, stop as soon as no reply is pending. This saves the last receive, which finds
        nothing and costs as much as one that does.
        """
        useful = False
        while (
            (drain or self.pending)
            and self.connection is not None
            and self.connection.open
            and (received := self.connection.receive()) is not None
        ):
            message = Message(received[0], self.mapped_slots, received[1])
            if message.kind == REPLY:
                useful |= self._on_reply(message)
            elif message.kind == UNMAP:
                self.mapped_slots.unmap(message.slot)
        return useful

    def _on_reply(self, message: Message) -> bool:
        value = message.decode()
        assert self._counters is not None
        self._counters.words[REPLY_COPIED] = message.number
        reply = self.pending.pop(message.reply_to, None)
        call = self._unanswered.pop(message.reply_to, None)
        if call is not None and call.slot is not None:
            call.slot.busy = False
        if reply is not None:
            reply.value, reply.done = value, True
        return value is not None
