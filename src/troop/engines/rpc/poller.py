"""SpinPoller: waits for readable file descriptors, spinning first if messages usually arrive soon."""

from __future__ import annotations

import os
import select
import time

SPIN_S = 0.001  # longest time to spin
WAIT_CAP_S = 0.003  # longer waits count as this long in the running mean


class SpinPoller:
    """Waits with poll(). It spins for up to SPIN_S before it blocks if the mean wait is shorter than that.

    Waking a process on an idle core takes longer than a call and its reply between two running processes.
    Spinning in vain costs at most SPIN_S and yields the core to other processes at every iteration.
    """

    def __init__(self) -> None:
        self.poll = select.poll()
        self._mean_wait_s = WAIT_CAP_S

    def wait(self, milliseconds: float) -> list[tuple[int, int]]:
        """Return the events that occur within this time; an empty list if none does."""
        if milliseconds <= 0:
            return self.poll.poll(0)
        began = now = time.perf_counter()
        events: list[tuple[int, int]] = []
        short = milliseconds < 1  # poll() rounds up to whole milliseconds
        if short or self._mean_wait_s < SPIN_S:
            limit = milliseconds / 1000 if short else SPIN_S
            while not (events := self.poll.poll(0)) and now - began < limit:
                os.sched_yield()
                now = time.perf_counter()
        if not events and not short:
            events = self.poll.poll(max(0.0, milliseconds - 1000 * (now - began)))
        self._mean_wait_s += (min(time.perf_counter() - began, WAIT_CAP_S) - self._mean_wait_s) / 8
        return events
