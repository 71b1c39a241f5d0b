"""Desk: hands letters to the roles they are for, joins what may be joined, and sends the answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from troop.engines.host import Host
from troop.engines.role_times import RoleTimes
from troop.engines.rpc.batching import NotJoinable, join, rows, split
from troop.engines.rpc.codec import call_prefix
from troop.engines.rpc.message import CALL


class ServerEdge(Protocol):
    """The server's end of the edge from one host, as a desk needs it."""

    inbox: Any  # a deque of letters, each with its `kind`
    zero_copy_prefixes: tuple[bytes, ...]  # how calls begin whose methods keep nothing of their arguments

    @property
    def client_connected(self) -> bool:
        """Whether whoever asked is still there."""
        ...

    def decode(self, message: Any) -> Any:  # noqa: ANN401
        """Node, method, arguments and named arguments."""
        ...

    def release(self, message: Any) -> None:  # noqa: ANN401
        """The method has returned: what was lent to it is its owner's again."""
        ...

    def read_incoming(self, drain: bool = False) -> object:
        """Put what came into the inbox."""
        ...


class ReplySender(Protocol):
    """Sends answers."""

    def send(self, edge: Any, message: Any, answer: Any, shared: tuple[str, int] | None) -> None:  # noqa: ANN401
        """Answer a letter; never waits.

        `shared` is a method that changes nothing and the number of changes so far: as long as both are the
        same, so is the answer, and one copy of it may serve many.
        """
        ...


DecodedCall = tuple[ServerEdge, Any, tuple[str, str, tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class ServedMethod:
    """A method of a role here, and how it is marked."""

    node: str
    name: str
    call: Callable[..., Any]
    batched: bool
    readonly: bool


class Dispatcher:
    """Serves the letters of one host, in the order of each sender."""

    def __init__(
        self,
        host: Host,
        edges: list[Any],
        replies: ReplySender,
        role_times: RoleTimes,
        doing: Callable[[str, str], None],
    ) -> None:
        self.host, self.edges, self.replies, self.role_times, self.doing = (
            host,
            edges,
            replies,
            role_times,
            doing,
        )
        self._methods: dict[tuple[str, str], ServedMethod] = {}
        self._changes = 0  # methods and steps so far that may have changed something
        zero_copy = tuple(call_prefix(*method) for method in _borrowing(host))
        for edge in edges:
            edge.zero_copy_prefixes = zero_copy

    def changed(self) -> None:
        """A role may be another than before: answers kept for others are void."""
        self._changes += 1

    def read_incoming(self) -> None:
        """Take in all letters that came."""
        for edge in self.edges:
            edge.read_incoming(drain=True)

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

    def _opened(self, edge: ServerEdge) -> DecodedCall:
        message = edge.inbox.popleft()
        return edge, message, edge.decode(message)

    def _handle(self, opened: DecodedCall) -> None:
        edge, message, (node, name, args, kwargs) = opened
        if message.kind == CALL and not edge.client_connected:
            return  # whoever asked is gone
        method = self._methods.get((node, name)) or self._method(node, name)
        if method.batched and message.kind == CALL and not kwargs:
            self._handle_many(opened, method)
            return
        answer = self._called(method, args, kwargs)
        edge.release(message)
        if message.kind == CALL:
            self._answer(edge, message, answer, method)

    def _method(self, node: str, name: str) -> ServedMethod:
        self.doing(node, name)
        if name.startswith("_"):
            raise AttributeError(f"{name} cannot be called from another host")
        call = getattr(self.host.roles[node], name)
        marks = (getattr(call, mark, False) for mark in ("batched", "readonly"))
        method = self._methods[(node, name)] = ServedMethod(node, name, call, *marks)
        return method

    def _called(self, method: ServedMethod, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        self.doing(method.node, method.name)
        began = time.perf_counter()
        answer = method.call(*args, **kwargs)
        if not method.readonly:
            self._changes += 1
        self.role_times.add_busy(method.node, time.perf_counter() - began, 0)
        return answer

    def _handle_many(self, first: DecodedCall, method: ServedMethod) -> None:
        """Join the calls of one method that wait at the front of their queues."""
        waiting: list[DecodedCall] = [first]
        others: list[DecodedCall] = []
        for edge in self.edges:
            if edge.inbox and edge.inbox[0].kind == CALL and edge.client_connected:
                opened = self._opened(edge)
                same = opened[2][:2] == first[2][:2] and not opened[2][3]
                (waiting if same else others).append(opened)
        for (edge, message, _), answer in zip(waiting, self._joined(method, waiting), strict=True):
            edge.release(message)
            self._answer(edge, message, answer, method)
        for opened in others:
            self._handle(opened)

    def _joined(self, method: ServedMethod, waiting: list[DecodedCall]) -> list[Any]:
        every = [args for _, _, (_, _, args, _) in waiting]
        counts = [rows(args) for args in every]
        if len(every) > 1 and all(count is not None for count in counts):
            whole = [count or 0 for count in counts]
            try:
                joined = join(every, whole)
            except NotJoinable:
                pass
            else:
                return split(self._called(method, joined, {}), whole)
        return [self._called(method, args, {}) for args in every]

    def _answer(self, edge: ServerEdge, message: Any, answer: Any, method: ServedMethod) -> None:  # noqa: ANN401
        shared = (f"{method.node}.{method.name}", self._changes) if method.readonly else None
        self.replies.send(edge, message, answer, shared)


def _borrowing(host: Host) -> list[tuple[str, str]]:
    """Nodes and methods that are marked so."""
    return [
        (node, name)
        for node, role in host.roles.items()
        for name in dir(type(role))
        if getattr(getattr(type(role), name), "zero_copy", False) and not name.startswith("_")
    ]
