"""Desk: hands letters to the roles they are for, joins what may be joined, and sends the answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from troop.engines.host import Host
from troop.engines.role_times import Meter
from troop.engines.rpc.batching import Unjoinable, join, rows, split
from troop.engines.rpc.codec import called
from troop.engines.rpc.message import CALL


class Edge(Protocol):
    """The server's end of the edge from one host, as a desk needs it."""

    inbox: Any  # a deque of letters, each with its `kind`
    zero_copy: tuple[bytes, ...]  # how calls begin whose methods keep nothing of their arguments

    @property
    def listening(self) -> bool:
        """Whether whoever asked is still there."""
        ...

    def open(self, letter: Any) -> Any:  # noqa: ANN401
        """Node, method, arguments and named arguments."""
        ...

    def done(self, letter: Any) -> None:  # noqa: ANN401
        """The method has returned: what was lent to it is its owner's again."""
        ...

    def pump(self, everything: bool = False) -> object:
        """Put what came into the inbox."""
        ...


class Answering(Protocol):
    """Sends answers."""

    def send(self, edge: Any, letter: Any, answer: Any, shared: tuple[str, int] | None) -> None:  # noqa: ANN401
        """Answer a letter; never waits.

        `shared` is a method that changes nothing and the number of changes so far: as long as both are the
        same, so is the answer, and one copy of it may serve many.
        """
        ...


Opened = tuple[Edge, Any, tuple[str, str, tuple[Any, ...], dict[str, Any]]]


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
        self,
        host: Host,
        edges: list[Any],
        answers: Answering,
        meter: Meter,
        doing: Callable[[str, str], None],
    ) -> None:
        self.host, self.edges, self.answers, self.meter, self.doing = host, edges, answers, meter, doing
        self._methods: dict[tuple[str, str], Method] = {}
        self._changes = 0  # methods and steps so far that may have changed something
        zero_copy = tuple(called(*method) for method in _borrowing(host))
        for edge in edges:
            edge.zero_copy = zero_copy

    def changed(self) -> None:
        """A role may be another than before: answers kept for others are void."""
        self._changes += 1

    def pump(self) -> None:
        """Take in all letters that came."""
        for edge in self.edges:
            edge.pump(everything=True)

    def serve(self) -> bool:
        """Handle what is here now, a letter of each sender in turn; whether there was any."""
        waiting = [(edge, len(edge.inbox)) for edge in self.edges if edge.inbox]
        served, turn = bool(waiting), 0
        while waiting:
            for edge, _ in waiting:
                if edge.inbox:  # still: what may be joined was handled with another's
                    self._handle(self._opened(edge))
            turn += 1
            waiting = [one for one in waiting if one[1] > turn]
        return served

    def _opened(self, edge: Edge) -> Opened:
        letter = edge.inbox.popleft()
        return edge, letter, edge.open(letter)

    def _handle(self, opened: Opened) -> None:
        edge, letter, (node, name, args, kwargs) = opened
        if letter.kind == CALL and not edge.listening:
            return  # whoever asked is gone
        method = self._methods.get((node, name)) or self._method(node, name)
        if method.batched and letter.kind == CALL and not kwargs:
            self._handle_many(opened, method)
            return
        answer = self._called(method, args, kwargs)
        edge.done(letter)
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
            if edge.inbox and edge.inbox[0].kind == CALL and edge.listening:
                opened = self._opened(edge)
                same = opened[2][:2] == first[2][:2] and not opened[2][3]
                (waiting if same else others).append(opened)
        for (edge, letter, _), answer in zip(waiting, self._joined(method, waiting), strict=True):
            edge.done(letter)
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

    def _answer(self, edge: Edge, letter: Any, answer: Any, method: Method) -> None:  # noqa: ANN401
        shared = (f"{method.node}.{method.name}", self._changes) if method.readonly else None
        self.answers.send(edge, letter, answer, shared)


def _borrowing(host: Host) -> list[tuple[str, str]]:
    """Nodes and methods that are marked so."""
    return [
        (node, name)
        for node, role in host.roles.items()
        for name in dir(type(role))
        if getattr(getattr(type(role), name), "zero_copy", False) and not name.startswith("_")
    ]
