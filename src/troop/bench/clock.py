"""Timing two things in turn, so that a noisy machine disturbs both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def seconds(work: Callable[[], object], least: float = 0.2) -> float:
    """Seconds per call, over at least `least` seconds of calls."""
    calls, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < least or not calls:
        work()
        calls += 1
    return spent / calls


def in_turn(works: dict[str, Callable[[], object]], rounds: int = 7, least: float = 0.2) -> dict[str, float]:
    """Median seconds per call of each, measured round by round in turn after one warm-up each."""
    for work in works.values():
        seconds(work, least / 2)
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            found[name].append(seconds(work, least))
    return {name: statistics.median(values) for name, values in found.items()}
