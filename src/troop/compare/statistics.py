"""Interquartile mean, bootstrap interval, time to threshold and probability of improvement; needs only numpy.

Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (2108.13264).
tests/compare/test_compare_oracles.py checks these functions against scipy and rliable.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

RESAMPLES = 2_000  # of the bootstrap
CONFIDENCE = 0.95
_BLOCK = 256  # points resampled at once, which limits memory to RESAMPLES x runs x _BLOCK numbers


def iqm_weights(count: int) -> Array:
    """Return the weight of each of `count` sorted values in their interquartile mean; the weights sum to 1.

    Exactly a quarter of the weight is trimmed at each end, if need be a fraction of a value: of 4 values the
    middle two remain, of 3 the middle one and a quarter of each other. scipy's `trim_mean` and rliable trim
    whole values only, so all three agree where `count` is a multiple of 4.
    """
    left = np.arange(count, dtype=np.float64)
    inside = np.minimum(left + 1, 0.75 * count) - np.maximum(left, 0.25 * count)
    return np.asarray(np.clip(inside, 0.0, None) / (0.5 * count))


def iqm(values: Array, axis: int = 0) -> Array:
    """Return the interquartile mean (mean of the middle half) along `axis`."""
    ordered = np.moveaxis(np.sort(values, axis=axis), axis, -1)
    return np.asarray(ordered @ iqm_weights(ordered.shape[-1]))


def bootstrap_interval(
    runs: Array, seed: int = 0, resamples: int = RESAMPLES, confidence: float = CONFIDENCE
) -> tuple[Array, Array]:
    """Return the lower and upper bound, each [point], of the interquartile mean of `runs` [run, point].

    Percentile bootstrap: each resample draws as many whole runs as there are, with replacement. The caller
    passes the runs of one recipe, so recipes are resampled separately (stratified).
    """
    count, points = runs.shape
    indices = np.random.default_rng(seed).integers(0, count, (resamples, count))
    low, high = np.empty(points), np.empty(points)
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    for start in range(0, points, _BLOCK):
        block = slice(start, start + _BLOCK)
        low[block], high[block] = np.quantile(iqm(runs[:, block][indices], axis=1), tails, axis=0)
    return low, high


def forward_fill(x: Array, values: Array, grid: Array) -> Array:
    """Return at each point of `grid` the last of `values`, measured at sorted `x`; nan before the first."""
    index = np.searchsorted(x, grid, side="right") - 1
    return np.where(index >= 0, values[np.maximum(index, 0)], np.nan)


def first_crossing(x: Array, values: Array, threshold: float) -> float:
    """Return the first `x` at which a value is at least `threshold`; infinity if there is none."""
    reached = np.flatnonzero(values >= threshold)
    return float(x[reached[0]]) if len(reached) else float("inf")


def median_time(times: list[float]) -> float:
    """Return the median of times, some of which may be infinite; infinity for an empty list."""
    return float(np.median(times)) if times else float("inf")


def probability_of_improvement(times: list[float], other_times: list[float]) -> float:
    """Return the share of pairs (one of each list) in which the first time is shorter; a tie counts one half.

    This is the Mann-Whitney U statistic of the negated times divided by the number of pairs.
    """
    a, b = np.array(times)[:, None], np.array(other_times)[None, :]
    return float(np.mean(np.where(a == b, 0.5, a < b)))
