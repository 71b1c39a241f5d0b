"""Edges over Ray: letters as calls of the peer's actor, numbered so that none comes twice or out of turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future as Outcome
from dataclasses import dataclass
from typing import Any, Protocol

from troop.engines.codec import Packed, address_of, pack
from troop.engines.letters import CALL, TELL
from troop.engines.unpacking import unpack

LETTERS = 256  # under way on one edge at most, however small
SHARED = 100 << 10  # bytes from which one copy of an answer serves all who get the same
PAUSE = 0.2  # seconds before a letter that met a broken connection is sent again

Body = tuple[bytes, Any]
"""A packed value as it travels: its description, and its arrays as one NumPy array or None."""


class Replaced(Exception):
    """A newer life of the same host has spoken: the older one is to be silent."""


def body(packed: Packed) -> Body:
    """Copy a packed value together; Ray carries one NumPy array faster than many tensors."""
    if not packed.size:
        return bytes(packed.meta), None
    import numpy

    block = bytearray(packed.size)
    packed.lay(address_of(block))
    return bytes(packed.meta), numpy.frombuffer(block, dtype=numpy.uint8)


def opened(meta: bytes, block: Any) -> Any:  # noqa: ANN401
    """The value; copied, because what Ray gives can only be read."""
    return unpack(meta) if block is None else unpack(meta, bytearray(block))


class Waiter(Protocol):
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


class Reply:
    """An answer under way."""

    __slots__ = ("_to", "_waiter", "done", "value")

    def __init__(self, waiter: Waiter, to: tuple[str, str]) -> None:
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
class Sent:
    """A letter that is not acknowledged yet and may have to be sent again."""

    kind: int
    body: Body
    size: int
    reply: Reply | None
    order: int = 0
    answer: bytes = b""  # the description of an answer whose arrays are still to come
    ref: Any = None  # Ray forgets what nobody holds


class RayAsking:
    """The asker's end of the edge to one host.

    A letter is kept until the server has opened it, a question until it is answered; if the server is
    replaced, all that is sent again, in order. The server knows a letter that comes again by its number.
    """

    def __init__(self, name: str, me: tuple[str, int], waiter: Waiter, budget: int) -> None:
        self.name, self._me, self._waiter, self._budget = name, me, waiter, budget
        self._handle: Any = None
        self._sent: dict[int, Sent] = {}  # by order, oldest first
        self._bytes = self._order = self._era = 0

    @property
    def expecting(self) -> bool:
        """Whether answers are under way."""
        return any(sent.reply is not None for sent in self._sent.values())

    def attach(self, handle: Any) -> None:  # noqa: ANN401
        """A new server, or the first: what the last one left is sent again."""
        again, self._sent = list(self._sent.values()), {}
        self._handle, self._order, self._era = handle, 0, self._era + 1
        for sent in again:
            self._number(sent)
            self._carry(sent)

    def ask(self, node: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reply:
        """Send a call; its reply comes later."""
        reply = Reply(self._waiter, (node, method))
        self._post(CALL, pack((node, method, args, kwargs)), node, reply)
        return reply

    def tell(self, node: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Send a letter that is not answered; waits while the mailbox is full."""
        self._post(TELL, pack((node, method, args, kwargs)), node, None)

    def _post(self, kind: int, packed: Packed, node: str, reply: Reply | None) -> None:
        size = len(packed.meta) + packed.size
        if not self._room(size):
            self._waiter.look()
        if not self._room(size):
            self._waiter.wait(lambda: self._room(size), f"room in the mailbox of {node}", full=True)
        self._bytes += size
        sent = Sent(kind, body(packed), size, reply)
        self._number(sent)
        self._carry(sent)

    def _room(self, size: int) -> bool:
        """Whether a letter fits; a mailbox that is empty takes any."""
        if self._handle is None:
            return False
        return not self._sent or (self._bytes + size <= self._budget and len(self._sent) < LETTERS)

    def _number(self, sent: Sent) -> None:
        self._order += 1
        sent.order = self._order
        self._sent[self._order] = sent

    def _carry(self, sent: Sent) -> None:
        settled, sent.answer = next(iter(self._sent)), b""
        sent.ref = self._handle.letter.remote(*self._me, sent.order, settled, sent.kind, *sent.body)
        self._await(sent)

    def _await(self, sent: Sent) -> None:
        era, order = self._era, sent.order
        sent.ref.future().add_done_callback(lambda outcome: self._waiter.put(self, era, order, outcome))

    def came(self, era: int, order: int, outcome: Outcome[Any] | None) -> bool:
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

        if isinstance(error, Replaced):
            raise error
        if not isinstance(error, ActorDiedError):  # that one is known to the launcher, who sends another
            self._waiter.put_later(PAUSE, self, era, order, None)
        return False

    def _arrived(self, sent: Sent, answer: Any) -> bool:  # noqa: ANN401
        if isinstance(answer, tuple) and isinstance(answer[1], list):  # its arrays serve others too
            sent.answer, sent.ref = answer[0], answer[1][0]
            self._await(sent)
            return False
        del self._sent[sent.order]
        self._bytes -= sent.size
        if sent.reply is None:
            return False
        value = opened(sent.answer, answer) if sent.answer else opened(*answer)
        sent.reply.value, sent.reply.done = value, True
        return value is not None


class RayLetter:
    """A letter that came, and whoever waits for what becomes of it."""

    def __init__(self, order: int, kind: int, body: Body) -> None:
        self.order, self.kind, self.body = order, kind, body
        self.size = len(body[0]) + (0 if body[1] is None else len(body[1]))
        self._loop = asyncio.get_running_loop()
        self._ends: list[asyncio.Future[Any]] = [self._loop.create_future()]
        self._result: list[Any] = []

    def __await__(self) -> Any:  # noqa: ANN401
        return self._ends[0].__await__()

    def resolve(self, result: Any) -> None:  # noqa: ANN401
        """Acknowledge or answer it."""
        self._result = [result]
        for end in self._ends:
            self._loop.call_soon_threadsafe(_settle, end, result)

    def refuse(self, error: Exception) -> None:
        """Let the sender know that it is not taken."""
        self._loop.call_soon_threadsafe(_settle, self._ends[0], error)

    def echo(self, letter: RayLetter) -> None:
        """The same letter once more: it gets what this one gets."""
        if self._result:
            letter.resolve(self._result[0])
        else:
            self._ends += letter._ends


def _settle(end: asyncio.Future[Any], result: Any) -> None:  # noqa: ANN401
    if end.done():
        return
    if isinstance(result, Exception):
        end.set_exception(result)
    else:
        end.set_result(result)


class RayServing:
    """The server's end of the edge from one host."""

    listening = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.inbox: deque[RayLetter] = deque()
        self._life, self._next = -1, 1
        self._early: dict[int, RayLetter] = {}
        self._known: dict[int, RayLetter] = {}  # those whose sender may not have its answer yet

    def take(self, life: int, settled: int, letter: RayLetter) -> None:
        """Put a letter where it belongs: in its turn, once, and only of the newest life of the asker."""
        if life < self._life:
            letter.refuse(Replaced(f"a newer {self.name} has taken over"))
            return
        if life > self._life:
            self._life, self._next = life, 1
            self.inbox = deque(old for old in self.inbox if old.kind == TELL)
            self._early.clear()
            self._known.clear()
        for order in [order for order in self._known if order < settled]:
            del self._known[order]
        if (known := self._known.get(letter.order)) is not None:
            known.echo(letter)
            return
        if letter.order < self._next:
            letter.resolve(None)
            return
        self._known[letter.order] = self._early[letter.order] = letter
        while (ready := self._early.pop(self._next, None)) is not None:
            self.inbox.append(ready)
            self._next += 1

    def pump(self, everything: bool = False) -> None:
        """Nothing: letters come by themselves."""

    def open(self, letter: RayLetter) -> Any:  # noqa: ANN401
        """Copy a letter out; a told one is acknowledged, so that its sender may send more."""
        value = opened(*letter.body)
        letter.body = (b"", None)
        if letter.kind == TELL:
            letter.resolve(None)
        return value


class RayAnswers:
    """Sends answers; a large one that many get lies in Ray's store once."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[tuple[int, ...], Packed, Any]] = {}

    def send(self, edge: RayServing, letter: RayLetter, answer: Any, shared: tuple[str, int] | None) -> None:  # noqa: ANN401
        """Answer a letter; never waits."""
        packed = pack(answer)
        if shared is None or packed.size < SHARED:
            letter.resolve(body(packed))
            return
        name, changes = shared
        key = (changes, packed.size, *packed.seen)
        kept = self._kept.get(name)
        if kept is None or kept[0] != key:
            import ray

            kept = self._kept[name] = (key, packed, ray.put(body(packed)[1]))
        letter.resolve((bytes(packed.meta), [kept[2]]))
