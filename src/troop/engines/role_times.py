"""What a host reports: the metrics of its roles, and how each of them spent its time."""

from __future__ import annotations

import time


class RoleTimes:
    """Seconds of each role: working, waiting for answers, blocked by a full mailbox; the rest is idle."""

    def __init__(self, names: list[str]) -> None:
        self._spent = {name: [0, 0.0, 0.0, 0.0] for name in names}  # steps, busy, waiting, blocked
        self._away, self._gone = [0.0, 0.0], False
        self._since = time.perf_counter()

    def add_busy(self, name: str, seconds: float, steps: int) -> None:
        """A step or a served method took this long, waits inside included."""
        spent = self._spent[name]
        spent[0] += steps
        spent[1] += seconds
        if self._gone:
            waiting, blocked = self._away
            spent[1] = max(0.0, spent[1] - waiting - blocked)
            spent[2] += waiting
            spent[3] += blocked
            self._away, self._gone = [0.0, 0.0], False

    def add_wait(self, seconds: float, full: bool) -> None:
        """A wait within what the role is doing now."""
        self._away[full] += seconds
        self._gone = True

    def add_idle_wait(self, name: str, seconds: float) -> None:
        """Between steps the role only had answers to wait for."""
        self._spent[name][2] += seconds

    def read(self) -> dict[str, float]:
        """Shares of the time since the last reading, as `role/<node>/busy` and so on."""
        now = time.perf_counter()
        window, self._since = max(now - self._since, 1e-9), now
        read: dict[str, float] = {}
        for name, (steps, *seconds) in self._spent.items():
            whole = max(window, sum(seconds))  # what took longer than a window is told when it is over
            busy, waiting, blocked = (x / whole for x in seconds)
            idle = max(0.0, 1.0 - busy - waiting - blocked)
            shares = {"busy": busy, "waiting": waiting, "blocked": blocked, "idle": idle}
            read |= {f"role/{name}/{key}": round(share, 4) for key, share in shares.items()}
            read[f"role/{name}/steps_per_s"] = round(steps / window, 3)
            self._spent[name] = [0, 0.0, 0.0, 0.0]
        return read
