"""GlobalUpdates: the number of updates that all learners of a parameter server have made together."""

from __future__ import annotations

from troop.core.remote import Prefetch
from troop.roles.parameter_server import ParameterServer


class GlobalUpdates:
    """Reads the count of the server, with one request always in flight to a server on another host.

    The first call blocks until the server replies, so that a restarted worker does not start from 0.
    """

    def __init__(self, server: ParameterServer) -> None:
        self._server, self._replies = server, Prefetch(server.updates)
        self._updates: int | None = None

    def __call__(self) -> int:
        """Return the newest count that has arrived."""
        if self._updates is None:
            self._updates = self._server.updates()
        self._replies.fill()
        reply = self._replies.poll()
        self._updates = self._updates if reply is None else reply
        return self._updates
