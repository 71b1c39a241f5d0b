"""Way: how pieces get to a store that may be elsewhere; Fan: several stores as one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor

from troop.core.batch import Rollout
from troop.core.flow import RateLimitedSink
from troop.core.remote import Future, call_async, send

MAX_IN_FLIGHT = 3  # pieces sent of which the store has not said that they came


class ReplaySender:
    """The way to one store, which is asked ahead whether it wants more; nobody ever waits for it.

    Each question follows a piece, so an answer also says that the piece came: `MAX_IN_FLIGHT` bounds both.
    `part` says what of a piece the store is sent, None for nothing; without it, everything.
    """

    def __init__(
        self, store: RateLimitedSink, part: Callable[[Rollout], Rollout | None] | None = None
    ) -> None:
        self.store, self.part = store, part
        self._asked: deque[Future[Literal[True] | None]] = deque()
        self._wanted: Literal[True] | None = True

    def open(self) -> bool:
        """Whether more may be sent, as far as is known."""
        while self._asked and self._asked[0].ready():
            self._wanted = self._asked.popleft().result()
        if self._wanted is None and not self._asked:
            self._asked.append(call_async(self.store.wants_data))
            if self._asked[0].ready():
                self._wanted = self._asked.popleft().result()
        return self._wanted is True and len(self._asked) <= MAX_IN_FLIGHT

    def invalidate(self) -> None:
        """Nothing is known of the store: ask before more is sent."""
        self._wanted = None

    def send(self, piece: Rollout) -> None:
        """A piece, or what of it the store is to have, and the next question."""
        sent = piece if self.part is None else self.part(piece)
        if sent is not None:
            send(self.store.add, sent)
            self._asked.append(call_async(self.store.wants_data))

    def end_streams(self, streams: Tensor | None = None) -> None:
        """What these streams bring next does not continue what they brought last."""
        send(self.store.end_streams, streams)


class Tee:
    """An Intake that gives each piece to several stores and wants data while all of them do."""

    def __init__(self, ways: Sequence[ReplaySender]) -> None:
        self.ways = ways
        for way in ways:
            way.invalidate()

    def wants_data(self) -> Literal[True] | None:
        """True while every store wants more; never waits."""
        return True if all([way.open() for way in self.ways]) else None

    def add(self, piece: Rollout) -> None:
        """To each store what it is to have."""
        for way in self.ways:
            way.send(piece)

    def end_streams(self, streams: Tensor | None = None) -> None:
        """Tell all stores."""
        for way in self.ways:
            way.end_streams(streams)
