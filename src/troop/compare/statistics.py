"""Interquartile means, their bootstrap intervals, and times that may never come; numpy only."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

ROUNDS = 2_000  # of the bootstrap
LEVEL = 0.95
_BLOCK = 256  # points resampled at once: ROUNDS x runs x _BLOCK numbers are held


def middle_weights(count: int) -> Array:
    """The weight of each of `count` sorted values in their interquartile mean; they sum to 1.

    Sorted values are laid out one beside the other, each one wide, and the outer quarters of that length are
    cut off, through a value if need be: of 4 the middle two are left, of 3 the middle one and a quarter of
    each other.
    """
    left = np.arange(count, dtype=np.float64)
    inside = np.minimum(left + 1, 0.75 * count) - np.maximum(left, 0.25 * count)
    return np.asarray(np.clip(inside, 0.0, None) / (0.5 * count))


def iqm(values: Array, axis: int = 0) -> Array:
    """The interquartile mean along `axis`: the mean of the middle half."""
    ordered = np.moveaxis(np.sort(values, axis=axis), axis, -1)
    return np.asarray(ordered @ middle_weights(ordered.shape[-1]))


def interval(runs: Array, seed: int = 0, rounds: int = ROUNDS, level: float = LEVEL) -> tuple[Array, Array]:
    """Bounds of the interquartile mean over `runs` [run, point], by the percentile bootstrap.

    Whole runs are drawn with replacement, as many as there are; recipes are strata, each resampled alone.
    """
    count, points = runs.shape
    drawn = np.random.default_rng(seed).integers(0, count, (rounds, count))
    low, high = np.empty(points), np.empty(points)
    tails = [(1 - level) / 2, (1 + level) / 2]
    for start in range(0, points, _BLOCK):
        block = slice(start, start + _BLOCK)
        low[block], high[block] = np.quantile(iqm(runs[:, block][drawn], axis=1), tails, axis=0)
    return low, high


def held(at: Array, values: Array, where: Array) -> Array:
    """What was last measured before or at each of `where`; nan before the first measurement."""
    index = np.searchsorted(at, where, side="right") - 1
    return np.where(index >= 0, values[np.maximum(index, 0)], np.nan)


def first_at(at: Array, values: Array, threshold: float) -> float:
    """Where a value first is at least `threshold`; infinity if never."""
    reached = np.flatnonzero(values >= threshold)
    return float(at[reached[0]]) if len(reached) else float("inf")


def middle_time(times: list[float]) -> float:
    """The median of times of which some may be infinite; infinity also if there are none."""
    return float(np.median(times)) if times else float("inf")


def probability_of_improvement(ours: list[float], theirs: list[float]) -> float:
    """The share of pairs (one of ours, one of theirs) in which ours is the smaller; ties count half."""
    a, b = np.array(ours)[:, None], np.array(theirs)[None, :]
    return float(np.mean(np.where(a == b, 0.5, a < b)))
