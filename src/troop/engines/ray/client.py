"""RayClient: the calling end of an edge between two hosts; each message is one call of the server's actor.

Ray may deliver calls out of order, and a call whose connection broke may or may not have been executed. The
client therefore numbers its messages and keeps each one until its result arrives, so it can send it again.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future as RayFuture
from dataclasses import dataclass
from typing import Any, Protocol

from troop.engines.ray.message import Body, StaleGeneration, from_body, to_body
from troop.engines.rpc.codec import Packed, pack
from troop.engines.rpc.message import CALL, SEND

MAX_IN_FLIGHT = 256  # unacknowledged messages of one edge
RETRY_S = 0.2  # delay before a message is sent again after a connection error


class RayWaiter(Protocol):
    """Runs callbacks in the thread of the roles and blocks for an edge while it handles control messages."""

    def wait(self, done: Callable[[], bool], reason: str, blocked: bool = False) -> None:
        """Block until `done()`; `blocked` attributes the time to back-pressure instead of to a reply.

        Raises TimeoutError with `reason` after the wait limit of the host.
        """
        ...

    def poll(self) -> None:
        """Run the queued callbacks without blocking."""
        ...

    def put(self, callback: Callable[..., bool], *args: Any) -> None:  # noqa: ANN401
        """Queue `callback(*args)` for the thread of the roles; thread-safe."""
        ...

    def put_later(self, seconds: float, callback: Callable[..., bool], *args: Any) -> None:  # noqa: ANN401
        """Queue `callback(*args)` after a delay."""
        ...


class RayReply:
    """The future of a remote call."""

    __slots__ = ("_target", "_waiter", "done", "value")

    def __init__(self, waiter: RayWaiter, target: tuple[str, str]) -> None:
        self._waiter, self._target = waiter, target
        self.done, self.value = False, None

    def ready(self) -> bool:
        """Return whether `result` returns without blocking."""
        if not self.done:
            self._waiter.poll()
        return self.done

    def result(self) -> Any:  # noqa: ANN401
        """Return the result of the call; block until it arrives."""
        if not self.done:
            self._waiter.wait(lambda: self.done, "the reply of {}.{}()".format(*self._target))
        return self.value


@dataclass(slots=True)
class RayInFlight:
    """A message without a result; it may have to be sent again."""

    kind: int
    body: Body
    size: int  # bytes
    reply: RayReply | None  # None for a one-way message
    sequence: int = 0
    reply_meta: bytes = b""  # metadata of a reply whose arrays are fetched separately
    ref: Any = None  # Ray object reference; Ray discards the result of a call without references


class RayClient:
    """The calling end of the edge to one host.

    A one-way message is kept until the server has decoded it, a call until its reply arrives. When the server
    is replaced, the client sends all kept messages again, in order. The server recognizes a repeated message
    by its sequence number.
    """

    def __init__(self, name: str, identity: tuple[str, int], waiter: RayWaiter, max_bytes: int) -> None:
        self.name = name  # host of the server
        self._identity = identity  # this host and the generation of its actor
        self._waiter, self._max_bytes = waiter, max_bytes
        self._server: Any = None  # Ray actor handle
        self._server_dead = False  # the driver attaches a new server or stops the run
        self._attachments = 0  # calls of `attach`; results of an earlier server are ignored
        self._in_flight: dict[int, RayInFlight] = {}  # by sequence number, oldest first
        self._bytes_in_flight = self._last_sequence = 0

    @property
    def awaiting_replies(self) -> bool:
        """Whether a call has no reply yet."""
        return any(message.reply is not None for message in self._in_flight.values())

    @property
    def has_undelivered(self) -> bool:
        """Whether a one-way message to a living server has not been decoded there."""
        return not self._server_dead and any(message.reply is None for message in self._in_flight.values())

    def attach(self, server: Any) -> None:  # noqa: ANN401
        """Connect to the first actor of the server's host or to a replacement; send all kept messages."""
        kept, self._in_flight = list(self._in_flight.values()), {}
        self._server, self._server_dead = server, False
        self._attachments += 1
        self._last_sequence = 0
        for message in kept:
            self._enqueue(message)
            self._transmit(message)

    def call(self, node: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RayReply:
        """Send a call and return its future; block while the server's mailbox is full."""
        reply = RayReply(self._waiter, (node, method))
        self._submit(CALL, pack((node, method, args, kwargs)), node, reply)
        return reply

    def send(self, node: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Send a one-way message; block while the server's mailbox is full."""
        self._submit(SEND, pack((node, method, args, kwargs)), node, None)

    def _submit(self, kind: int, packed: Packed, node: str, reply: RayReply | None) -> None:
        size = len(packed.meta) + packed.size
        if not self._fits(size):
            self._waiter.poll()
        if not self._fits(size):
            self._waiter.wait(lambda: self._fits(size), f"space in the mailbox of {node}", blocked=True)
        self._bytes_in_flight += size
        message = RayInFlight(kind, to_body(packed), size, reply)
        self._enqueue(message)
        self._transmit(message)

    def _fits(self, size: int) -> bool:
        """Return whether a message may be sent; an empty mailbox accepts a message of any size."""
        if self._server is None:
            return False
        return not self._in_flight or (
            self._bytes_in_flight + size <= self._max_bytes and len(self._in_flight) < MAX_IN_FLIGHT
        )

    def _enqueue(self, message: RayInFlight) -> None:
        self._last_sequence += 1
        message.sequence = self._last_sequence
        self._in_flight[self._last_sequence] = message

    def _transmit(self, message: RayInFlight) -> None:
        oldest, message.reply_meta = next(iter(self._in_flight)), b""
        message.ref = self._server.receive_message.remote(
            *self._identity, message.sequence, oldest, message.kind, *message.body
        )
        self._watch(message)

    def _watch(self, message: RayInFlight) -> None:
        attachment, sequence = self._attachments, message.sequence
        message.ref.future().add_done_callback(
            lambda result: self._waiter.put(self.on_result, attachment, sequence, result)
        )

    def on_result(self, attachment: int, sequence: int, result: RayFuture[Any]) -> bool:
        """Handle the result of a message, or retry it later; return whether a reply other than None arrived.

        Raises StaleGeneration if a newer actor of this host has replaced this one.
        """
        message = self._in_flight.get(sequence)
        if attachment != self._attachments or message is None:
            return False
        error = result.exception()
        if error is None:
            return self._on_reply(message, result.result())
        from ray.exceptions import ActorDiedError

        if isinstance(error, StaleGeneration):
            raise error
        self._server_dead = isinstance(error, ActorDiedError)  # the driver notices and attaches another
        if not self._server_dead:
            self._waiter.put_later(RETRY_S, self.on_retry, attachment, sequence)
        return False

    def on_retry(self, attachment: int, sequence: int) -> bool:
        """Send a message again after a connection error, unless its server was replaced; return False."""
        message = self._in_flight.get(sequence)
        if attachment == self._attachments and message is not None:
            self._transmit(message)
        return False

    def _on_reply(self, message: RayInFlight, result: Any) -> bool:  # noqa: ANN401
        if isinstance(result, tuple) and isinstance(result[1], list):
            # The arrays are in Ray's object store, shared with other clients: fetch them by reference.
            message.reply_meta, message.ref = result[0], result[1][0]
            self._watch(message)
            return False
        del self._in_flight[message.sequence]
        self._bytes_in_flight -= message.size
        if message.reply is None:
            return False
        value = from_body(message.reply_meta, result) if message.reply_meta else from_body(*result)
        message.reply.value, message.reply.done = value, True
        return value is not None
