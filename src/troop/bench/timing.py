"""Time several functions alternately, so that noise of the machine affects all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def seconds_per_call(function: Callable[[], object], min_seconds: float = 0.2) -> float:
    """Call the function for at least `min_seconds`; return the mean seconds per call."""
    calls, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < min_seconds or not calls:
        function()
        calls += 1
    return spent / calls


def time_alternately(
    functions: dict[str, Callable[[], object]], rounds: int = 7, min_seconds: float = 0.2
) -> dict[str, float]:
    """Return the median seconds per call of each function over `rounds` rounds, after one warm-up each."""
    for function in functions.values():
        seconds_per_call(function, min_seconds / 2)
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            times[name].append(seconds_per_call(function, min_seconds))
    return {name: statistics.median(values) for name, values in times.items()}
