"""Dispatcher: calls the methods of local roles for received messages, joins batched calls, sends replies."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from troop.core.remote import BatchLimits
from troop.engines.host import Host
from troop.engines.role_times import RoleTimes
from troop.engines.rpc.batching import row_count
from troop.engines.rpc.codec import call_prefix
from troop.engines.rpc.message import CALL
from troop.engines.rpc.waiting_calls import WaitingCalls, invoke_joined


class ServerEdge(Protocol):
    """The serving end of the edge from one client host; implemented by each engine."""

    inbox: Any  # a deque of messages with a `kind`
    zero_copy_prefixes: tuple[bytes, ...]  # call prefixes of methods that keep no reference to arguments

    @property
    def generation(self) -> int:
        """Number of the client's process; a reply to a call of an earlier one must not be sent."""
        ...

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
    waiting: WaitingCalls[tuple[DecodedCall, int]]  # calls with the generation of their client, if batched


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
        self._batched: list[ServedMethod] = []  # those of them that are
        self._generations: dict[int, int] = {}  # of each edge that has made a batched call, by its id
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
        """Handle the messages that are in the inboxes now, one of each client in turn; return if any was.

        Calls of batched methods are collected meanwhile. They are made together at the end, unless they wait
        for more rows (see `BatchLimits`).
        """
        waiting = [(edge, len(edge.inbox)) for edge in self.edges if edge.inbox]
        served, turn = bool(waiting), 0
        while waiting:
            for edge, _ in waiting:
                if edge.inbox:  # a client that was replaced meanwhile has an empty one
                    self._handle(self._decode_next(edge))
            turn += 1
            waiting = [entry for entry in waiting if entry[1] > turn]
        now = time.perf_counter()
        for method in self._batched:
            if method.waiting.due_in(now) == 0:
                self._make_batch(method)
                served = True
        return served

    def due_in(self) -> float:
        """Return the seconds until collected calls must be made; infinity without any."""
        now = time.perf_counter()
        return min((method.waiting.due_in(now) for method in self._batched), default=math.inf)

    def _decode_next(self, edge: ServerEdge) -> DecodedCall:
        message = edge.inbox.popleft()
        return edge, message, edge.decode(message)

    def _handle(self, decoded: DecodedCall) -> None:
        edge, message, (node, name, args, kwargs) = decoded
        if message.kind == CALL and not edge.client_connected:
            return
        method = self._methods.get((node, name)) or self._find_method(node, name)
        is_batched = method.batched and message.kind == CALL and not kwargs
        for other in self._batched:  # earlier calls of this client are made first
            if not (is_batched and other is method) and any(
                call[0] is edge for call, _ in other.waiting.calls
            ):
                self._make_batch(other)
        if is_batched:
            self._collect(decoded, method)
            return
        result = self._invoke(method, args, kwargs)
        edge.release(message)
        if message.kind == CALL:
            self._reply(edge, message, result, method)

    def _find_method(self, node: str, name: str) -> ServedMethod:
        self.on_call(node, name)
        if name.startswith("_"):
            raise AttributeError(f"{name} is private and cannot be called from another host")
        role = self.host.roles[node]
        function = getattr(role, name)
        is_batched, readonly = (getattr(function, mark, False) for mark in ("batched", "readonly"))
        limits = getattr(role, "batch_limits", BatchLimits())
        method = ServedMethod(node, name, function, is_batched, readonly, WaitingCalls(limits))
        self._methods[(node, name)] = method
        if is_batched:
            self._batched.append(method)
        return method

    def _invoke(self, method: ServedMethod, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        self.on_call(method.node, method.name)
        began = time.perf_counter()
        result = method.function(*args, **kwargs)
        if not method.readonly:
            self._changes += 1
        self.role_times.add_busy(method.node, time.perf_counter() - began, 0)
        return result

    def _collect(self, call: DecodedCall, method: ServedMethod) -> None:
        """Let a call wait for others; make the batch if it is full."""
        edge, rows = call[0], row_count(call[2][2]) or 1
        if self._generations.get(id(edge)) != edge.generation:  # calls of an earlier process of the client
            self._generations[id(edge)] = edge.generation
            method.waiting.keep(lambda entry: entry[1] == entry[0][0].generation)
        if not method.waiting.has_room(rows):
            self._make_batch(method)
        method.waiting.add((call, edge.generation), rows, time.perf_counter())
        if method.waiting.rows >= method.waiting.limits.max_rows:
            self._make_batch(method)

    def _make_batch(self, method: ServedMethod) -> None:
        """Make the collected calls of a method, if possible as one, except those of replaced clients."""
        calls = [call for call, generation in method.waiting.take() if call[0].generation == generation]
        calls = [call for call in calls if call[0].client_connected]
        results = invoke_joined(lambda args: self._invoke(method, args, {}), [call[2][2] for call in calls])
        for (edge, message, _), result in zip(calls, results, strict=True):
            edge.release(message)
            self._reply(edge, message, result, method)

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
