"""Lookout: how a host waits for what comes along its lines."""

from __future__ import annotations

import os
import select
import time

SOON, LATE = 0.0003, 0.003  # seconds


class SpinPoller:
    """Waits on a poll; where things lately came soon it looks for a while before it sleeps.

    To wake a process on an idle core takes longer than a whole question and its answer between two that are
    awake. Who looks in vain loses at most SOON, and gives way to others at every look.
    """

    def __init__(self) -> None:
        self.poll = select.poll()
        self._usual = LATE  # seconds until something comes, about

    def wait(self, milliseconds: float) -> list[tuple[int, int]]:
        """What came, within this time."""
        if milliseconds <= 0:
            return self.poll.poll(0)
        began = now = time.perf_counter()
        events: list[tuple[int, int]] = []
        if self._usual < SOON:
            while not (events := self.poll.poll(0)) and now - began < SOON:
                os.sched_yield()
                now = time.perf_counter()
        if not events:
            events = self.poll.poll(milliseconds)
        self._usual += (min(time.perf_counter() - began, LATE) - self._usual) / 8
        return events
