"""What the console shows of a run, and its numbers in words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from troop.logs.topology import Flow, Group

_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Progress:
    """A run at one moment; None where something is not known (yet)."""

    env_steps: int
    updates: int
    wall_s: float  # training only
    evaluation_s: float = 0.0
    env_steps_per_s: float = 0.0
    updates_per_s: float = 0.0
    return_mean: float | None = None  # of the last evaluation
    return_std: float | None = None
    human_normalized: float | None = None  # percent
    best: float | None = None
    target: float | None = None
    episode_return: float | None = None  # of recent training episodes
    losses: dict[str, float] = field(default_factory=dict)
    fraction: float | None = None  # done, 0 to 1
    seconds_left: float | None = None
    counters: dict[str, int] = field(default_factory=dict)  # faults, skipped updates, restarts
    flow: Flow = field(default_factory=Flow)
    roles: Sequence[Group] = ()  # empty if the engine does not tell of them
    bottleneck: str = ""
    history: Sequence[float] = ()  # evaluation returns, oldest first


def count(value: float) -> str:
    """Spell a count in four figures at most: 950, 12.3k, 4.56M."""
    if not math.isfinite(value):
        return "-"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g}{unit}" if abs(value) < size * 999.5 else f"{value / size:.0f}{unit}"
    return f"{value:.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.1f}"


def number(value: float | None) -> str:
    """Spell a return or a loss in about four figures; a dash if there is none."""
    if value is None or not math.isfinite(value):
        return "-" if value is None else str(value)
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def size(value: float) -> str:
    """Spell bytes in three figures at most: 950B, 12kB, 1.4MB."""
    for unit, letter in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= unit * 0.9995:
            return f"{value / unit:.1f}{letter}" if value < unit * 9.95 else f"{value / unit:.0f}{letter}"
    return f"{value:.0f}B"


def duration(seconds: float | None) -> str:
    """Spell a time as 42s, 3m 07s, 2h 05m or 3d 04h."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw the values as bars, averaged into at most `width` of them."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite or width < 1:
        return ""
    columns = min(width, len(finite))
    edges = [i * len(finite) // columns for i in range(columns + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    if high - low <= 0:
        return _BARS[0] * columns
    return "".join(_BARS[round((mean - low) / (high - low) * (len(_BARS) - 1))] for mean in means)


def printable(text: str) -> str:
    """Drop what could steer the terminal: names may come from anywhere."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
