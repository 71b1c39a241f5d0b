"""The asker's end of an edge over Ray: letters are calls of the peer's actor, and numbered."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future as Outcome
from dataclasses import dataclass
from typing import Any, Protocol

from troop.engines.rpc.codec import Packed, address_of, pack
from troop.engines.rpc.decode import unpack
from troop.engines.rpc.message import CALL, SEND

LETTERS = 256  # under way on one edge at most, however small
PAUSE = 0.2  # seconds before a letter that met a broken connection is sent again

Body = tuple[bytes, Any]
"""A packed value as it travels: its description, and its arrays as one NumPy array or None."""


class StaleGeneration(Exception):
    """A newer life of the same host has spoken: the older one is to be silent."""


def to_body(packed: Packed) -> Body:
    """Copy a packed value together; Ray carries one NumPy array faster than many tensors."""
    if not packed.size:
        return bytes(packed.meta), None
    import numpy

    block = bytearray(packed.size)
    packed.copy_to(address_of(block))
    return bytes(packed.meta), numpy.frombuffer(block, dtype=numpy.uint8)


def from_body(meta: bytes, block: Any) -> Any:  # noqa: ANN401
    """The value; copied, because what Ray gives can only be read."""
    return unpack(meta) if block is None else unpack(meta, bytearray(block))


class RayWaiter(Protocol):
    """Whoever can wait for an edge without being deaf to the launcher."""

    def wait(self, done: Callable[[], bool], why: str, full: bool = False) -> None:
        """Return once `done()`; TimeoutError naming `why` if that takes too long."""
        ...

    def look(self) -> None:
        """Take in what has come by now."""
        ...

    def put(self, *event: Any) -> None:  # noqa: ANN401
        """Remember for the role's thread; may be called from any."""
        ...

    def put_later(self, seconds: float, *event: Any) -> None:  # noqa: ANN401
        """The same, after a while."""
        ...


class RayReply:
    """An answer under way."""

    __slots__ = ("_to", "_waiter", "done", "value")

    def __init__(self, waiter: RayWaiter, to: tuple[str, str]) -> None:
        self._waiter, self._to = waiter, to
        self.done, self.value = False, None

    def ready(self) -> bool:
        """Whether it is here."""
        if not self.done:
            self._waiter.look()
        return self.done

    def result(self) -> Any:  # noqa: ANN401
        """The answer, waited for if need be."""
        if not self.done:
            self._waiter.wait(lambda: self.done, "the answer of {}.{}()".format(*self._to))
        return self.value


@dataclass(slots=True)
class RayInFlight:
    """A letter that is not acknowledged yet and may have to be sent again."""

    kind: int
    to_body: Body
    size: int
    reply: RayReply | None
    order: int = 0
    answer: bytes = b""  # the description of an answer whose arrays are still to come
    ref: Any = None  # Ray forgets what nobody holds


class RayClient:
    """The asker's end of the edge to one host.

    A letter is kept until the server has opened it, a question until it is answered; if the server is
    replaced, all that is sent again, in order. The server knows a letter that comes again by its number.
    """

    def __init__(self, name: str, me: tuple[str, int], waiter: RayWaiter, max_bytes: int) -> None:
        self.name, self._me, self._waiter, self._budget = name, me, waiter, max_bytes
        self._handle: Any = None
        self._sent: dict[int, RayInFlight] = {}  # by order, oldest first
        self._bytes = self._order = self._era = 0
        self._dead = False  # whoever is asked; another will be attached, or none

    @property
    def awaiting_replies(self) -> bool:
        """Whether answers are under way."""
        return any(sent.reply is not None for sent in self._sent.values())

    @property
    def has_undelivered(self) -> bool:
        """Whether letters that are not answered are under way to somebody."""
        return not self._dead and any(sent.reply is None for sent in self._sent.values())

    def attach(self, handle: Any) -> None:  # noqa: ANN401
        """A new server, or the first: what the last one left is sent again."""
        again, self._sent = list(self._sent.values()), {}
        self._handle, self._order, self._era, self._dead = handle, 0, self._era + 1, False
        for sent in again:
            self._number(sent)
            self._carry(sent)

    def call(self, node: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RayReply:
        """Send a call; its reply comes later."""
        reply = RayReply(self._waiter, (node, method))
        self._post(CALL, pack((node, method, args, kwargs)), node, reply)
        return reply

    def send(self, node: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Send a letter that is not answered; waits while the mailbox is full."""
        self._post(SEND, pack((node, method, args, kwargs)), node, None)

    def _post(self, kind: int, packed: Packed, node: str, reply: RayReply | None) -> None:
        size = len(packed.meta) + packed.size
        if not self._room(size):
            self._waiter.look()
        if not self._room(size):
            self._waiter.wait(lambda: self._room(size), f"room in the mailbox of {node}", full=True)
        self._bytes += size
        sent = RayInFlight(kind, to_body(packed), size, reply)
        self._number(sent)
        self._carry(sent)

    def _room(self, size: int) -> bool:
        """Whether a letter fits; a mailbox that is empty takes any."""
        if self._handle is None:
            return False
        return not self._sent or (self._bytes + size <= self._budget and len(self._sent) < LETTERS)

    def _number(self, sent: RayInFlight) -> None:
        self._order += 1
        sent.order = self._order
        self._sent[self._order] = sent

    def _carry(self, sent: RayInFlight) -> None:
        settled, sent.answer = next(iter(self._sent)), b""
        sent.ref = self._handle.message.remote(*self._me, sent.order, settled, sent.kind, *sent.to_body)
        self._await(sent)

    def _await(self, sent: RayInFlight) -> None:
        era, order = self._era, sent.order
        sent.ref.future().add_done_callback(lambda outcome: self._waiter.put(self, era, order, outcome))

    def on_outcome(self, era: int, order: int, outcome: Outcome[Any] | None) -> bool:
        """What became of a letter, or None if it is time to try again; whether it brought an answer."""
        sent = self._sent.get(order)
        if era != self._era or sent is None:
            return False  # of a server that was replaced
        if outcome is None:
            self._carry(sent)
            return False
        error = outcome.exception()
        if error is None:
            return self._arrived(sent, outcome.result())
        from ray.exceptions import ActorDiedError

        if isinstance(error, StaleGeneration):
            raise error
        self._dead = isinstance(error, ActorDiedError)  # which is known to the launcher, who sends another
        if not self._dead:
            self._waiter.put_later(PAUSE, self, era, order, None)
        return False

    def _arrived(self, sent: RayInFlight, answer: Any) -> bool:  # noqa: ANN401
        if isinstance(answer, tuple) and isinstance(answer[1], list):  # its arrays serve others too
            sent.answer, sent.ref = answer[0], answer[1][0]
            self._await(sent)
            return False
        del self._sent[sent.order]
        self._bytes -= sent.size
        if sent.reply is None:
            return False
        value = from_body(sent.answer, answer) if sent.answer else from_body(*answer)
        sent.reply.value, sent.reply.done = value, True
        return value is not None
