"""Dispatcher: calls the methods of local roles for received messages, joins batched calls, sends replies."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from troop.engines.host import Host
from troop.engines.role_times import RoleTimes
from troop.engines.rpc.batching import NotJoinable, join_rows, row_count, split_rows
from troop.engines.rpc.codec import call_prefix
from troop.engines.rpc.message import CALL


class ServerEdge(Protocol):
    """The serving end of the edge from one client host; implemented by each engine."""

    inbox: Any  # a deque of messages with a `kind`
    zero_copy_prefixes: tuple[bytes, ...]  # call prefixes of methods that keep no reference to arguments

    @property
    def client_connected(self) -> bool:
        """Whether the client can still receive replies."""
        ...

    def decode(self, message: Any) -> Any:  # noqa: ANN401
        """Return node, method, args and kwargs of a message."""
        ...

    def release(self, message: Any) -> None:  # noqa: ANN401
        """Called after the method has returned: the client may reuse the memory of the arguments."""
        ...

    def read_incoming(self, drain: bool = False) -> object:
        """Move received messages to the inbox."""
        ...


class ReplySender(Protocol):
    """Sends replies to clients; implemented by each engine."""

    def send(self, edge: Any, message: Any, result: Any, shared: tuple[str, int] | None) -> None:  # noqa: ANN401
        """Reply to a call; never blocks.

        `shared` identifies the result of a readonly method by the method and the number of state changes of
        the host so far: results with equal `shared` and arguments are equal, and clients may share one copy.
        """
        ...


DecodedCall = tuple[ServerEdge, Any, tuple[str, str, tuple[Any, ...], dict[str, Any]]]
"""Edge, message, and node, method, args and kwargs of the message."""


@dataclass(frozen=True, slots=True)
class ServedMethod:
    """A method of a local role and its decorators."""

    node: str
    name: str
    function: Callable[..., Any]
    batched: bool
    readonly: bool


class Dispatcher:
    """Serves the messages of all clients of one host, in the order in which each client sent them."""

    def __init__(
        self,
        host: Host,
        edges: list[Any],
        replies: ReplySender,
        role_times: RoleTimes,
        on_call: Callable[[str, str], None],
    ) -> None:
        self.host, self.edges, self.replies = host, edges, replies
        self.role_times, self.on_call = role_times, on_call
        self._methods: dict[tuple[str, str], ServedMethod] = {}
        self._changes = 0  # steps and calls so far that may have changed the state of a role
        prefixes = tuple(call_prefix(*method) for method in _zero_copy_methods(host))
        for edge in edges:
            edge.zero_copy_prefixes = prefixes

    def invalidate_replies(self) -> None:
        """Called after a step: the state of a role may have changed, so shared replies are obsolete."""
        self._changes += 1

    def read_incoming(self) -> None:
        """Move all received messages to the inboxes."""
        for edge in self.edges:
            edge.read_incoming(drain=True)

    def serve(self) -> bool:
        """Handle the messages that are in the inboxes now, one of each client in turn; return if any was."""
        waiting = [(edge, len(edge.inbox)) for edge in self.edges if edge.inbox]
        served, turn = bool(waiting), 0
        while waiting:
            for edge, _ in waiting:
                if edge.inbox:  # a joined call may have consumed it
                    self._handle(self._decode_next(edge))
            turn += 1
            waiting = [entry for entry in waiting if entry[1] > turn]
        return served

    def _decode_next(self, edge: ServerEdge) -> DecodedCall:
        message = edge.inbox.popleft()
        return edge, message, edge.decode(message)

    def _handle(self, decoded: DecodedCall) -> None:
        edge, message, (node, name, args, kwargs) = decoded
        if message.kind == CALL and not edge.client_connected:
            return
        method = self._methods.get((node, name)) or self._find_method(node, name)
        if method.batched and message.kind == CALL and not kwargs:
            self._handle_batch(decoded, method)
            return
        result = self._invoke(method, args, kwargs)
        edge.release(message)
        if message.kind == CALL:
            self._reply(edge, message, result, method)

    def _find_method(self, node: str, name: str) -> ServedMethod:
        self.on_call(node, name)
        if name.startswith("_"):
            raise AttributeError(f"{name} is private and cannot be called from another host")
        function = getattr(self.host.roles[node], name)
        marks = (getattr(function, mark, False) for mark in ("batched", "readonly"))
        method = self._methods[(node, name)] = ServedMethod(node, name, function, *marks)
        return method

    def _invoke(self, method: ServedMethod, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        self.on_call(method.node, method.name)
        began = time.perf_counter()
        result = method.function(*args, **kwargs)
        if not method.readonly:
            self._changes += 1
        self.role_times.add_busy(method.node, time.perf_counter() - began, 0)
        return result

    def _handle_batch(self, first: DecodedCall, method: ServedMethod) -> None:
        """Join `first` with the calls of the same method that are next in the inboxes of other clients."""
        same: list[DecodedCall] = [first]
        others: list[DecodedCall] = []
        for edge in self.edges:
            if edge.inbox and edge.inbox[0].kind == CALL and edge.client_connected:
                decoded = self._decode_next(edge)
                is_same = decoded[2][:2] == first[2][:2] and not decoded[2][3]
                (same if is_same else others).append(decoded)
        for (edge, message, _), result in zip(same, self._invoke_batch(method, same), strict=True):
            edge.release(message)
            self._reply(edge, message, result, method)
        for decoded in others:
            self._handle(decoded)

    def _invoke_batch(self, method: ServedMethod, calls: list[DecodedCall]) -> list[Any]:
        """Return the result of each call; calls the method once if the calls can be joined."""
        all_args = [args for _, _, (_, _, args, _) in calls]
        counts = [row_count(args) for args in all_args]
        if len(all_args) > 1 and all(count is not None for count in counts):
            known_counts = [count or 0 for count in counts]
            try:
                joined = join_rows(all_args, known_counts)
            except NotJoinable:
                pass
            else:
                return split_rows(self._invoke(method, joined, {}), known_counts)
        return [self._invoke(method, args, {}) for args in all_args]

    def _reply(self, edge: ServerEdge, message: Any, result: Any, method: ServedMethod) -> None:  # noqa: ANN401
        shared = (f"{method.node}.{method.name}", self._changes) if method.readonly else None
        self.replies.send(edge, message, result, shared)


def _zero_copy_methods(host: Host) -> list[tuple[str, str]]:
    return [
        (node, name)
        for node, role in host.roles.items()
        for name in dir(type(role))
        if getattr(getattr(type(role), name), "zero_copy", False) and not name.startswith("_")
    ]
