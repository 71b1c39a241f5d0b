"""ReplaySender: rollouts to a replay that may be remote; Tee: several replays as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from torch import Tensor

from troop.core.batch import Rollout, Trajectory
from troop.core.flow import RateLimitedSink
from troop.core.remote import Prefetch, send

MAX_IN_FLIGHT = 3  # rollouts sent that the replay has not acknowledged


class ReplaySender:
    """Sends rollouts to one replay and never blocks on its replies.

    A `wants_data` request follows each rollout, and messages are handled in order, so its reply also
    acknowledges the rollout: `MAX_IN_FLIGHT` bounds both. `transform` returns the part of a rollout to send,
    or None to send nothing; without it, rollouts are sent as they are.
    """

    def __init__(self, replay: RateLimitedSink[Any], transform: Callable[[Any], Any] | None = None) -> None:
        self.replay, self.transform = replay, transform
        self._requests = Prefetch(replay.wants_data)
        self._wants_data: Literal[True] | None = True  # the newest reply

    def can_send(self) -> bool:
        """Return whether the newest reply allows another rollout and few enough are unacknowledged."""
        while self._requests.ready():
            self._wants_data = self._requests.poll()
        if self._wants_data is None and not self._requests.in_flight:
            self._requests.request()
            self._wants_data = self._requests.poll()
        return self._wants_data is True and self._requests.in_flight <= MAX_IN_FLIGHT

    def invalidate(self) -> None:
        """Discard the newest reply: nothing is sent before the replay accepts rows again."""
        self._wants_data = None

    def send(self, rollout: Rollout | Trajectory) -> None:
        """Send the rollout, or the part of it that `transform` returns, and the next request."""
        part = rollout if self.transform is None else self.transform(rollout)
        if part is not None:
            send(self.replay.add, part)
            self._requests.request()

    def end_streams(self, streams: Tensor | None = None) -> None:
        """The next rows of these streams (None: all) do not continue their last ones."""
        send(self.replay.end_streams, streams)


class Tee:
    """A RateLimitedSink that sends each rollout to several replays and accepts rows while all of them do."""

    def __init__(self, senders: Sequence[ReplaySender]) -> None:
        self.senders = senders
        for sender in senders:
            sender.invalidate()

    def wants_data(self) -> Literal[True] | None:
        """Return True while every replay accepts rows; never blocks."""
        return True if all([sender.can_send() for sender in self.senders]) else None

    def add(self, rollout: Rollout) -> None:
        """Send the rollout to each replay."""
        for sender in self.senders:
            sender.send(rollout)

    def end_streams(self, streams: Tensor | None = None) -> None:
        """Forward to all replays."""
        for sender in self.senders:
            sender.end_streams(streams)
