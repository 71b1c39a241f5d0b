"""Desk: hands letters to the roles they are for, joins what may be joined, and sends the answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from troop.engines.answering import Answers, Serving
from troop.engines.codec import Packed, pack
from troop.engines.host import Host
from troop.engines.joining import Unjoinable, join, rows, split
from troop.engines.letters import CALL, Letter, needs
from troop.engines.meter import Meter
from troop.engines.shared import Slot

Opened = tuple[Serving, Letter, tuple[str, str, tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a role here, and how it is marked."""

    node: str
    name: str
    call: Callable[..., Any]
    batched: bool
    readonly: bool


class Desk:
    """Serves the letters of one host, in the order of each sender."""

    def __init__(
        self, host: Host, edges: list[Serving], meter: Meter, doing: Callable[[str, str], None], spare: int
    ) -> None:
        self.host, self.edges, self.meter, self.doing = host, edges, meter, doing
        self.answers = Answers(spare)
        self._methods: dict[tuple[str, str], Method] = {}
        self._changes = 0  # methods and steps so far that may have changed something

    def changed(self) -> None:
        """A role may be another than before: answers kept for others are void."""
        self._changes += 1

    def pump(self) -> None:
        """Take in all letters that came."""
        for edge in self.edges:
            edge.pump(everything=True)

    def serve(self) -> bool:
        """Handle what is here now, a letter of each sender in turn; whether there was any."""
        waiting = [edge for edge in self.edges if edge.inbox]
        for _ in range(max([len(edge.inbox) for edge in waiting], default=0)):
            for edge in waiting:
                if edge.inbox:
                    self._handle(self._opened(edge))
        return bool(waiting)

    def _opened(self, edge: Serving) -> Opened:
        letter = edge.inbox.popleft()
        return edge, letter, edge.open(letter)

    def _handle(self, opened: Opened) -> None:
        edge, letter, (node, name, args, kwargs) = opened
        if letter.kind == CALL and (edge.line is None or not edge.line.open):
            return  # whoever asked is gone
        method = self._methods.get((node, name)) or self._method(node, name)
        if method.batched and letter.kind == CALL and not kwargs:
            self._handle_many(opened, method)
            return
        answer = self._called(method, args, kwargs)
        if letter.kind == CALL:
            self._answer(edge, letter, answer, method)

    def _method(self, node: str, name: str) -> Method:
        self.doing(node, name)
        if name.startswith("_"):
            raise AttributeError(f"{name} cannot be called from another host")
        call = getattr(self.host.roles[node], name)
        marks = (getattr(call, mark, False) for mark in ("batched", "readonly"))
        method = self._methods[(node, name)] = Method(node, name, call, *marks)
        return method

    def _called(self, method: Method, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        self.doing(method.node, method.name)
        began = time.perf_counter()
        answer = method.call(*args, **kwargs)
        if not method.readonly:
            self._changes += 1
        self.meter.worked(method.node, time.perf_counter() - began, 0)
        return answer

    def _handle_many(self, first: Opened, method: Method) -> None:
        """Join the calls of one method that wait at the front of their queues."""
        waiting: list[Opened] = [first]
        others: list[Opened] = []
        for edge in self.edges:
            if edge.inbox and edge.inbox[0].kind == CALL and edge.line is not None and edge.line.open:
                opened = self._opened(edge)
                same = opened[2][:2] == first[2][:2] and not opened[2][3]
                (waiting if same else others).append(opened)
        for (edge, letter, _), answer in zip(waiting, self._joined(method, waiting), strict=True):
            self._answer(edge, letter, answer, method)
        for opened in others:
            self._handle(opened)

    def _joined(self, method: Method, waiting: list[Opened]) -> list[Any]:
        every = [args for _, _, (_, _, args, _) in waiting]
        counts = [rows(args) for args in every]
        if len(every) > 1 and all(count is not None for count in counts):
            whole = [count or 0 for count in counts]
            try:
                joined = join(every, whole)
            except Unjoinable:
                pass
            else:
                return split(self._called(method, joined, {}), whole)
        return [self._called(method, args, {}) for args in every]

    def _answer(self, edge: Serving, letter: Letter, answer: Any, method: Method) -> None:  # noqa: ANN401
        packed = pack(answer)
        slot: Slot | None = None
        laid = False
        if needed := needs(packed):
            slot, laid = self._slot(packed, needed, method)
            for number in self.answers.slots.forgotten:
                for other in self.edges:
                    other.forget(number)
            self.answers.slots.forgotten.clear()
        edge.answer(letter.number, packed, slot, self.answers, laid)

    def _slot(self, packed: Packed, needed: int, method: Method) -> tuple[Slot, bool]:
        """Where an answer goes; True if it lies there already because someone else just had the same."""
        if not method.readonly:
            return self.answers.take(needed), False
        kept = f"{method.node}.{method.name}"
        key = (self._changes, packed.size, *packed.seen)
        held = self.answers.kept.get(kept)
        if held is not None and held[0] == key:
            return held[1], True
        self.answers.keep(kept, key, slot := self.answers.take(needed))
        return slot, False
