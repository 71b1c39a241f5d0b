"""RoleTimes: how each role of a host spends its time."""

from __future__ import annotations

import time


class RoleTimes:
    """Measures the seconds in which each role is busy, waits for replies or is blocked by a full mailbox.

    The remaining time is idle. Each wait is measured while a step or a served method runs, and is subtracted
    from the busy time of that role when the step or method ends.
    """

    def __init__(self, names: list[str]) -> None:
        self._spent = {name: [0, 0.0, 0.0, 0.0] for name in names}  # steps, busy, waiting, blocked
        self._waits, self._has_waited = [0.0, 0.0], False  # waiting and blocked, in the current activity
        self._last_read = time.perf_counter()

    def add_busy(self, name: str, seconds: float, steps: int) -> None:
        """Add the duration of a step or of a served method, including the waits inside it."""
        spent = self._spent[name]
        spent[0] += steps
        spent[1] += seconds
        if self._has_waited:
            waiting, blocked = self._waits
            spent[1] = max(0.0, spent[1] - waiting - blocked)
            spent[2] += waiting
            spent[3] += blocked
            self._waits, self._has_waited = [0.0, 0.0], False

    def add_wait(self, seconds: float, blocked: bool) -> None:
        """Add a wait inside the current activity: `blocked` by a full mailbox, or for a reply."""
        self._waits[blocked] += seconds
        self._has_waited = True

    def add_idle_wait(self, name: str, seconds: float) -> None:
        """Add a pause between steps during which replies to the role were outstanding."""
        self._spent[name][2] += seconds

    def read(self) -> dict[str, float]:
        """Return and reset the shares of time as `role/<node>/busy|waiting|blocked|idle` and steps_per_s."""
        now = time.perf_counter()
        window, self._last_read = max(now - self._last_read, 1e-9), now
        readings: dict[str, float] = {}
        for name, (steps, *seconds) in self._spent.items():
            total = max(window, sum(seconds))  # an activity longer than the window is counted when it ends
            busy, waiting, blocked = (x / total for x in seconds)
            idle = max(0.0, 1.0 - busy - waiting - blocked)
            shares = {"busy": busy, "waiting": waiting, "blocked": blocked, "idle": idle}
            readings |= {f"role/{name}/{key}": round(share, 4) for key, share in shares.items()}
            readings[f"role/{name}/steps_per_s"] = round(steps / window, 3)
            self._spent[name] = [0, 0.0, 0.0, 0.0]
        return readings
