"""The server's end of an edge, and the slots in which answers travel."""

from __future__ import annotations

from collections import deque
from typing import Any

from troop.engines.rpc.codec import Packed, pack
from troop.engines.rpc.connection import Line
from troop.engines.rpc.message import ANSWER, CALL, FORGET, TELL, Letter, compose, forgotten, needs, wake
from troop.engines.rpc.shared_memory import (
    HANDLED,
    HANDLED_BYTES,
    OPENED,
    SENT,
    TAKEN,
    WAITING,
    Ledger,
    Mapped,
    Slot,
    Slots,
)


class Answers:
    """The slots in which a host's answers travel; one slot may serve many askers."""

    def __init__(self, spare: int, edges: list[Serving]) -> None:
        self.slots, self._edges = Slots(spare), edges
        self.kept: dict[str, tuple[tuple[int, ...], Slot]] = {}  # answers that the next asker may share
        self._readers: dict[int, tuple[Slot, list[tuple[Serving, int, int]]]] = {}

    def send(self, edge: Serving, letter: Letter, answer: Any, shared: tuple[str, int] | None) -> None:  # noqa: ANN401
        """Answer a letter; never waits. One slot serves all who get the same answer."""
        packed = pack(answer)
        slot: Slot | None = None
        laid = False
        if needed := needs(packed):
            slot, laid = self._slot(packed, needed, shared)
            for number in self.slots.forgotten:
                for other in self._edges:
                    other.forget(number)
            self.slots.forgotten.clear()
        edge.answer(letter.number, packed, slot, self, laid)

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
        self.zero_copy: tuple[bytes, ...] = ()  # how calls begin to whose methods memory may be lent
        self.mapped = Mapped()
        self._known: set[int] = set()
        self._answers = 0

    @property
    def listening(self) -> bool:
        """Whether whoever asked is still there."""
        return self.line is not None and self.line.open

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

    def pump(self, everything: bool = False) -> bool:
        """Take in what came, unopened, up to the first question or `everything`; whether any waits."""
        line, ledger = self.line, self.ledger
        while line is not None and line.open and (came := line.receive()) is not None:
            letter = Letter(came[0], self.mapped, came[1])
            if letter.kind == FORGET:
                self.mapped.forget(letter.slot)
            else:
                self.inbox.append(letter)
                # A look that finds nothing costs as much as one that does: spared after the last letter sent
                # and after a question, whose asker mostly waits; if there is more, the next poll says so.
                last = ledger is None or letter.number >= ledger.words[SENT]
                if (last or letter.kind == CALL) and not everything:
                    break
        return bool(self.inbox)

    def open(self, letter: Letter) -> Any:  # noqa: ANN401
        """Copy a letter out, and the asker may reuse its memory; what is only lent it may after `done`."""
        if letter.number and self.ledger is not None:
            self.ledger.words[OPENED] = letter.number
        value = letter.open(self.zero_copy, self.generation)
        if not letter.lent:
            self._handled(letter)
        return value

    def done(self, letter: Letter) -> None:
        """The letter was handled; whoever lent it may have been replaced meanwhile."""
        if letter.lent == self.generation:
            self._handled(letter)

    def _handled(self, letter: Letter) -> None:
        if letter.number and self.ledger is not None and self.line is not None:
            words = self.ledger.words
            words[HANDLED] = letter.number
            words[HANDLED_BYTES] += letter.weight
            if words[WAITING]:
                self.line.send(wake())

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
            self.line.send(forgotten(number))
