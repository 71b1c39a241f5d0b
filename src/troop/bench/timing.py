"""Time several functions alternately, so that noise of the machine affects all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

Clock = Callable[[], float]  # seconds
Report = Callable[[str], None]
"""Receives what is measured at the moment, for the user."""


def ignore(text: str) -> None:
    """A Report that shows nothing."""


def seconds_per_call(
    function: Callable[[], object], min_seconds: float = 0.2, clock: Clock = time.perf_counter
) -> float:
    """Call the function for at least `min_seconds`; return the mean seconds per call."""
    calls, start = 0, clock()
    while (spent := clock() - start) < min_seconds or not calls:
        function()
        calls += 1
    return spent / calls


def time_alternately(
    functions: dict[str, Callable[[], object]],
    rounds: int = 7,
    min_seconds: float = 0.2,
    clock: Clock = time.perf_counter,
    report: Report = ignore,
) -> dict[str, float]:
    """Return the median seconds per call of each function over `rounds` rounds, after one warm-up each."""
    report("warm-up")
    for function in functions.values():
        seconds_per_call(function, min_seconds / 2, clock)
    times: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(1, rounds + 1):
        report(f"round {number} of {rounds}")
        for name, function in functions.items():
            times[name].append(seconds_per_call(function, min_seconds, clock))
    return {name: statistics.median(values) for name, values in times.items()}
