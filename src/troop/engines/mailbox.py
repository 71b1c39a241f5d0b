"""The two ends of an edge: the asker's, which keeps what is not handled yet, and the server's."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from troop.engines.codec import Packed, address_of, aligned, pack
from troop.engines.line import Line
from troop.engines.shared import (
    HANDLED,
    HANDLED_BYTES,
    SENT,
    SENT_BYTES,
    TAKEN,
    WAITING,
    Ledger,
    Mapped,
    Slot,
    Slots,
)
from troop.engines.unpacking import unpack

CALL, TELL, ANSWER, WAKE, FORGET = range(5)
INLINE = 32 << 10  # bytes of arrays that go with the message instead of into a slot: two short copies less
# Kind, whether the description is in the slot too, slot, bytes of the description and of the arrays, number,
# number of the question it answers.
_HEAD = struct.Struct("<BxHIIQQQ")
LONGEST_META = 48 << 10


class Waiter(Protocol):
    """Whoever can wait for an edge without being deaf to the launcher."""

    def wait(self, edge: Asking, done: Callable[[], bool], why: str, full: bool = False) -> None:
        """Return once `done()`; TimeoutError naming `why` if that takes too long."""
        ...


@dataclass(slots=True)
class Sent:
    """A letter that may have to be sent again."""

    number: int
    message: bytearray
    size: int
    slot: Slot | None


def compose(kind: int, packed: Packed, number: int, reply_to: int, slot: Slot | None) -> bytearray:
    """A message; arrays are copied, into the slot if there is one."""
    meta, long = packed.meta, len(packed.meta) > LONGEST_META
    if slot is None:
        message = bytearray(_HEAD.size + (start := aligned(len(meta))) + packed.size)
        if packed.size:
            packed.lay(address_of(message) + _HEAD.size + start)
    else:
        message = bytearray(_HEAD.size + (0 if long else len(meta)))
        packed.lay(slot.address)
        if long:
            slot.block[packed.size : packed.size + len(meta)] = meta
    if not long:
        message[_HEAD.size : _HEAD.size + len(meta)] = meta
    number_of_slot = 0 if slot is None else slot.number
    _HEAD.pack_into(message, 0, kind, long, number_of_slot, len(meta), packed.size, number, reply_to)
    return message


def needs(packed: Packed) -> int:
    """Bytes of slot that a message needs, 0 if it travels by itself."""
    if len(packed.meta) > LONGEST_META:
        return packed.size + len(packed.meta)
    return packed.size if packed.size > INLINE else 0


class Letter:
    """A message that came; its content is copied out once, when `open` is called."""

    __slots__ = ("_body", "_long", "_mapped", "_meta", "_slot", "kind", "number", "reply_to", "size")

    def __init__(self, message: memoryview, mapped: Mapped, fds: list[int]) -> None:
        (self.kind, self._long, self._slot, self._meta, self.size, self.number, self.reply_to) = (
            _HEAD.unpack_from(message)
        )
        self._body, self._mapped = bytearray(message[_HEAD.size :]), mapped
        for fd in fds:
            mapped.add(self._slot, fd)

    def open(self) -> Any:  # noqa: ANN401
        """The value."""
        if not self._slot:
            return unpack(self._body[: self._meta], self._body, aligned(self._meta))
        if not self._long:
            return unpack(self._body, self._mapped.copy(self._slot, self.size))
        block = self._mapped.copy(self._slot, self.size + self._meta)
        return unpack(memoryview(block)[self.size :], block)


class Reply:
    """An answer under way."""

    __slots__ = ("_edge", "_to", "done", "value")

    def __init__(self, edge: Asking, to: tuple[str, str]) -> None:
        self._edge, self._to = edge, to
        self.done, self.value = False, None

    def ready(self) -> bool:
        """Whether it is here."""
        if not self.done:
            self._edge.pump(everything=False)
        return self.done

    def result(self) -> Any:  # noqa: ANN401
        """The answer, waited for if need be."""
        if not self.done:
            why = "the answer of {}.{}()".format(*self._to)
            self._edge.waiter.wait(self._edge, lambda: self.done, why)
        return self.value


class Asking:
    """The asker's end of the edge to one host.

    Everything sent is kept until the server has copied it, calls until they are answered; if the server is
    replaced, all that is sent again, in order. A told letter that was being handled is not repeated.
    """

    def __init__(self, name: str, waiter: Waiter, budget: int) -> None:
        self.name, self.waiter, self.budget = name, waiter, budget
        self.line: Line | None = None
        self.slots, self.mapped = Slots(budget), Mapped()
        self.pending: dict[int, Reply] = {}
        self._ledger: Ledger | None = None
        self._number = 0
        self._unhandled: deque[Sent] = deque()
        self._unanswered: dict[int, Sent] = {}
        self._known: set[int] = set()  # slots whose memory the server has

    def attach(self, line: Line, ledger: int) -> None:
        """A new server, or the first: what the last one left is sent again."""
        self._settle()
        if self.line is not None:
            self.pump()
            self.line.close()
        again = sorted(self._unanswered.values(), key=lambda sent: sent.number) + list(self._unhandled)
        self.line, self._ledger, self.mapped = line, Ledger(ledger), Mapped()
        self._known.clear()
        self._unanswered.clear()
        self._unhandled.clear()
        for sent in again:
            self._send(sent)

    def ask(self, node: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reply:
        """Send a call; its reply comes later."""
        number = self._post(CALL, node, method, args, kwargs)
        reply = self.pending[number] = Reply(self, (node, method))
        self._drained(node)
        return reply

    def tell(self, node: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Send a letter that is not answered; waits while the mailbox is full."""
        self._post(TELL, node, method, args, kwargs)
        self._drained(node)

    def _post(self, kind: int, node: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        packed = pack((node, method, args, kwargs))
        size = len(packed.meta) + packed.size
        if not self._room(size):
            self.waiter.wait(self, lambda: self._room(size), f"room in the mailbox of {node}", full=True)
        slot = self.slots.take(needed, self._settle) if (needed := needs(packed)) else None
        self._number += 1
        self._send(Sent(self._number, compose(kind, packed, self._number, 0, slot), size, slot))
        return self._number

    def _room(self, size: int) -> bool:
        """Whether a letter fits; a mailbox that is empty takes any."""
        if self._ledger is None or self.line is None or not self.line.open:
            return False
        self._settle()
        words = self._ledger.words
        waiting = words[SENT_BYTES] - words[HANDLED_BYTES]
        fits = waiting == 0 or waiting + size <= self.budget
        words[WAITING] = 0 if fits else 1
        return fits

    def _send(self, sent: Sent) -> None:
        assert self.line is not None and self._ledger is not None
        self._unhandled.append(sent)
        words = self._ledger.words
        words[SENT], words[SENT_BYTES] = sent.number, words[SENT_BYTES] + sent.size
        while self.slots.forgotten:
            self._known.discard(number := self.slots.forgotten.pop())
            self.line.send(_HEAD.pack(FORGET, 0, number, 0, 0, 0, 0))
        fds: tuple[int, ...] = ()
        if sent.slot is not None and sent.slot.number not in self._known:
            self._known.add(sent.slot.number)
            fds = (sent.slot.fd,)
        self.line.send(sent.message, fds)

    def _drained(self, node: str) -> None:
        """Wait for the kernel, if it took less than was sent."""
        if self.line is not None and self.line.stuffed:
            why = f"room in the mailbox of {node}"
            self.waiter.wait(self, lambda: self.line is None or not self.line.stuffed, why, full=True)

    def _settle(self) -> None:
        """Let go of what the server has copied."""
        handled = self._ledger.words[HANDLED] if self._ledger is not None else 0
        while self._unhandled and self._unhandled[0].number <= handled:
            sent = self._unhandled.popleft()
            if sent.number in self.pending:
                self._unanswered[sent.number] = sent
            elif sent.slot is not None:
                sent.slot.busy = False

    def pump(self, everything: bool = True) -> bool:
        """Take in what came, or only answers still wanted; whether there was one other than None."""
        told = False
        # The last look, which finds nothing, costs as much as all others: spared if no answer is wanted.
        while (
            (everything or self.pending)
            and self.line is not None
            and self.line.open
            and (came := self.line.receive()) is not None
        ):
            letter = Letter(came[0], self.mapped, came[1])
            if letter.kind == ANSWER:
                told |= self._answered(letter)
            elif letter.kind == FORGET:
                self.mapped.forget(letter._slot)
        return told

    def _answered(self, letter: Letter) -> bool:
        value = letter.open()
        assert self._ledger is not None
        self._ledger.words[TAKEN] = letter.number
        reply = self.pending.pop(letter.reply_to, None)
        sent = self._unanswered.pop(letter.reply_to, None)
        if sent is not None and sent.slot is not None:
            sent.slot.busy = False
        if reply is not None:
            reply.value, reply.done = value, True
        return value is not None


class Answers:
    """The slots in which a host's answers travel; one slot may serve many askers."""

    def __init__(self, spare: int) -> None:
        self.slots = Slots(spare)
        self.kept: dict[str, tuple[tuple[int, ...], Slot]] = {}  # answers that the next asker may share
        self._readers: dict[int, tuple[Slot, list[tuple[Serving, int, int]]]] = {}

    def keep(self, name: str, key: tuple[int, ...], slot: Slot) -> None:
        """Hold on to an answer until the next of that name."""
        before = self.kept.pop(name, None)
        self.kept[name] = (key, slot)
        if before is not None and before[1].number not in self._readers:
            before[1].busy = False

    def take(self, size: int) -> Slot:
        """A slot that nobody reads any more."""
        return self.slots.take(size, self._settle)

    def read_by(self, slot: Slot, edge: Serving, answer: int) -> None:
        """The slot is busy until this answer was taken, or its asker replaced."""
        self._readers.setdefault(slot.number, (slot, []))[1].append((edge, edge.generation, answer))

    def _settle(self) -> None:
        for number, (slot, readers) in list(self._readers.items()):
            readers[:] = [r for r in readers if not r[0].has_taken(r[1], r[2])]
            if not readers:
                del self._readers[number]
                slot.busy = any(slot is kept for _, kept in self.kept.values())


class Serving:
    """The server's end of the edge from one host."""

    def __init__(self, name: str) -> None:
        self.name, self.generation = name, 0
        self.line: Line | None = None
        self.ledger: Ledger | None = None
        self.inbox: deque[Letter] = deque()
        self.mapped = Mapped()
        self._known: set[int] = set()
        self._answers = 0

    def attach(self, line: Line, ledger: int) -> None:
        """A new asker, or the first: what the last one told is still handled, its questions are not."""
        if self.line is not None:
            self.pump(everything=True)
            self.line.close()
        self.inbox = deque(letter for letter in self.inbox if letter.kind == TELL)
        for letter in self.inbox:
            letter.number = 0  # of another ledger
        self.line, self.ledger, self.mapped = line, Ledger(ledger), Mapped()
        self._known.clear()
        self.generation += 1
        self._answers = 0

    def pump(self, everything: bool = False) -> None:
        """Put what came into the inbox, unopened; a question is the last, unless `everything` is wanted."""
        while self.line is not None and self.line.open and (came := self.line.receive()) is not None:
            letter = Letter(came[0], self.mapped, came[1])
            if letter.kind == FORGET:
                self.mapped.forget(letter._slot)
            else:
                self.inbox.append(letter)
                if letter.kind == CALL and not everything:
                    break  # its asker mostly waits now; if there is more, the next poll says so

    def open(self, letter: Letter) -> Any:  # noqa: ANN401
        """Copy a letter out; from now on the asker may reuse its memory."""
        value = letter.open()
        if letter.number and self.ledger is not None and self.line is not None:
            words = self.ledger.words
            words[HANDLED], words[HANDLED_BYTES] = (
                letter.number,
                words[HANDLED_BYTES] + letter.size + letter._meta,
            )
            if words[WAITING]:
                self.line.send(_HEAD.pack(WAKE, 0, 0, 0, 0, 0, 0))
        return value

    def has_taken(self, generation: int, answer: int) -> bool:
        """Whether the asker has copied this answer, or is no longer the one that was answered."""
        if generation != self.generation or self.ledger is None or self.line is None or not self.line.open:
            return True
        return bool(self.ledger.words[TAKEN] >= answer)

    def answer(self, reply_to: int, packed: Packed, slot: Slot | None, answers: Answers, laid: bool) -> None:
        """Send an answer; never waits. `laid`: the slot already holds it."""
        if self.line is None:
            return
        self._answers += 1
        if slot is not None:
            answers.read_by(slot, self, self._answers)
        fds: tuple[int, ...] = ()
        if slot is not None and slot.number not in self._known:
            self._known.add(slot.number)
            fds = (slot.fd,)
        if laid:
            packed.buffers = []  # the memory holds them; only the description is sent again
        self.line.send(compose(ANSWER, packed, self._answers, reply_to, slot), fds)

    def forget(self, number: int) -> None:
        """Tell the asker that a slot is gone."""
        if self.line is not None and number in self._known:
            self._known.discard(number)
            self.line.send(_HEAD.pack(FORGET, 0, number, 0, 0, 0, 0))
