"""The state of a run as the console shows it, and numbers as short text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from troop.logs.flow import Flow
from troop.logs.topology import RoleGroup

_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Progress:
    """The state of a run at one moment; None where a value is not known yet."""

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
    fraction: float | None = None  # of the budget, 0 to 1
    seconds_left: float | None = None
    counters: dict[str, int] = field(default_factory=dict)  # faults, skipped updates, restarts
    flow: Flow = field(default_factory=Flow)
    roles: Sequence[RoleGroup] = ()  # empty if the engine reports no role metrics
    split: dict[str, float] = field(
        default_factory=dict
    )  # shares of the time of one thread; see `time_split`
    cpu: float | None = None  # cores that this process uses
    memory_bytes: float | None = None  # resident memory of this process
    growing: Sequence[str] = ()  # roles whose memory grows without a pause
    bottleneck: str = ""
    history: Sequence[float] = ()  # evaluation returns, oldest first


def count(value: float) -> str:
    """A count in at most four digits: 950, 12.3k, 4.56M."""
    if not math.isfinite(value):
        return "-"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g}{unit}" if abs(value) < size * 999.5 else f"{value / size:.0f}{unit}"
    return f"{value:.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.1f}"


def number(value: float | None) -> str:
    """A return or a loss in about four digits; a dash for None."""
    if value is None or not math.isfinite(value):
        return "-" if value is None else str(value)
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def size(value: float) -> str:
    """Bytes in at most three digits: 950B, 12kB, 1.4MB."""
    for unit, suffix in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= unit * 0.9995:
            return f"{value / unit:.1f}{suffix}" if value < unit * 9.95 else f"{value / unit:.0f}{suffix}"
    return f"{value:.0f}B"


def duration(seconds: float | None) -> str:
    """A time as 42s, 3m 07s, 2h 05m or 3d 04h; a dash for None."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    rounded = max(0, round(seconds))
    if rounded < 60:
        return f"{rounded}s"
    if rounded < 3600:
        return f"{rounded // 60}m {rounded % 60:02d}s"
    if rounded < 86400:
        return f"{rounded // 3600}h {rounded % 3600 // 60:02d}m"
    return f"{rounded // 86400}d {rounded % 86400 // 3600:02d}h"


def sparkline(values: Sequence[float], width: int) -> str:
    """The values as a line of at most `width` bars, each the mean of its share of the values."""
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
    """Replace control characters by spaces: a name could contain terminal escape sequences."""
    return "".join(char if char.isprintable() else " " for char in text)
