"""Warn when the memory of a role keeps growing: an env or a library that leaks ends a long run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from troop.logs.progress import duration, size

WINDOW_S = 120.0  # the smallest value in each window counts, so that short peaks do not
WINDOWS = 4  # consecutive windows in which memory grows before the warning
MIN_GROWTH = 128e6  # bytes, and at least a tenth of the memory at the beginning
_SUFFIX = "/memory_bytes"


@dataclass
class _Series:
    low: float  # smallest value of the current window
    window_start: float
    previous_low: float = float("inf")  # of the previous window
    first_low: float = 0.0  # where the growth began
    first_time: float = 0.0
    windows: int = 0  # consecutive windows of growth
    warned_growth: float = 0.0


class MemoryGrowth:
    """Follows the metrics `role/<node>/memory_bytes` and `process/memory_bytes`.

    It warns if the smallest values of `WINDOWS` consecutive windows increase by `MIN_GROWTH` in total, and
    again each time the growth has doubled.
    """

    def __init__(
        self,
        window_s: float = WINDOW_S,
        min_growth: float = MIN_GROWTH,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.window_s, self.min_growth, self.clock = window_s, min_growth, clock
        self.growing: set[str] = set()  # owners of the last warnings, until their memory stops growing
        self._series: dict[str, _Series] = {}

    def update(self, metrics: Mapping[str, float]) -> list[str]:
        """Take the metrics of one line; return the warnings that are due."""
        now = self.clock()
        readings = {
            _owner(name): value for name, value in metrics.items() if name.endswith(_SUFFIX) and value
        }
        warnings = [self._add(owner, value, now) for owner, value in readings.items()]
        return [text for text in warnings if text]

    def _add(self, owner: str, value: float, now: float) -> str:
        series = self._series.setdefault(owner, _Series(value, now))
        if now - series.window_start < self.window_s:
            series.low = min(series.low, value)
            return ""
        low, series.low, series.window_start = series.low, value, now
        previous, series.previous_low = series.previous_low, low
        if low <= previous:
            series.windows, series.first_low, series.first_time, series.warned_growth = 0, low, now, 0.0
            self.growing.discard(owner)
            return ""
        series.windows += 1
        growth = low - series.first_low
        limit = max(self.min_growth, 0.1 * series.first_low, 2 * series.warned_growth)
        if series.windows < WINDOWS or growth < limit:
            return ""
        series.warned_growth = growth
        self.growing.add(owner)
        return (
            f"the memory of {owner} has grown without a pause by {size(growth)} to {size(low)} in "
            f"{duration(now - series.first_time)}; if the env leaks, a smaller --recreate-every frees its "
            "memory more often."
        )


def _owner(metric: str) -> str:
    return metric.removeprefix("role/").removesuffix(_SUFFIX).replace("process", "this process")
