"""Interquartile mean, bootstrap interval, performance profile and times to thresholds; needs only numpy.

Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (2108.13264).
tests/compare/test_compare_oracles.py checks these functions against scipy and rliable.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

RESAMPLES = 2_000  # of the bootstrap
CONFIDENCE = 0.95
_BLOCK = 4_000_000  # numbers resampled at once, which limits memory

Statistic = Callable[[Array, Array], Array]  # of values [..., run, point] and weights [run]: [..., point]


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


def weighted_iqm(values: Array, weights: Array) -> Array:
    """Return the interquartile mean [..., point] of `values` [..., run, point]; `weights` [run] sum to 1.

    A quarter of the weight is trimmed at each end; with equal weights the result is that of `iqm`.
    """
    order = np.argsort(values, axis=-2)
    ordered, share = np.take_along_axis(values, order, axis=-2), weights[order]
    right = np.cumsum(share, axis=-2)
    inside = np.minimum(right, 0.75) - np.maximum(right - share, 0.25)
    return np.asarray((np.clip(inside, 0.0, None) * ordered).sum(axis=-2) / 0.5)


def weighted_mean(values: Array, weights: Array) -> Array:
    """Return the mean [..., point] of `values` [..., run, point]; `weights` [run] sum to 1."""
    return np.asarray(np.einsum("...rp,r->...p", values, weights))


def task_weights(counts: list[int]) -> Array:
    """Return the weight of each run if every task has the same total weight; `counts` are runs per task."""
    return np.concatenate([np.full(count, 1 / (count * len(counts))) for count in counts])


def stratified_interval(
    tasks: list[Array],
    statistic: Statistic = weighted_iqm,
    seed: int = 0,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> tuple[Array, Array]:
    """Return the lower and upper bound, each [point], of a statistic of the runs of several tasks.

    `tasks` has an array [run, point] per task. Percentile bootstrap: each resample draws, for each task, as
    many whole runs of it as there are, with replacement. Every task has the same weight.
    """
    values, counts = np.concatenate(tasks), [len(runs) for runs in tasks]
    random, starts = np.random.default_rng(seed), np.cumsum([0, *counts[:-1]])
    draws = [random.integers(0, count, (resamples, count)) for count in counts]
    indices = np.concatenate([start + draw for start, draw in zip(starts, draws, strict=True)], axis=1)
    weights, tails = task_weights(counts), [(1 - confidence) / 2, (1 + confidence) / 2]
    points = values.shape[1]
    low, high = np.empty(points), np.empty(points)
    width = max(1, _BLOCK // indices.size)
    for first in range(0, points, width):
        block = slice(first, first + width)
        low[block], high[block] = np.quantile(statistic(values[:, block][indices], weights), tails, axis=0)
    return low, high


def bootstrap_interval(
    runs: Array, seed: int = 0, resamples: int = RESAMPLES, confidence: float = CONFIDENCE
) -> tuple[Array, Array]:
    """Return the lower and upper bound, each [point], of the interquartile mean of `runs` [run, point].

    The caller passes the runs of one recipe, so recipes are resampled separately.
    """
    return stratified_interval([runs], weighted_iqm, seed, resamples, confidence)


def performance_profile(tasks: list[Array], levels: Array) -> tuple[Array, Array, Array]:
    """Return the share of runs whose score is above each level, [level], with lower and upper bound.

    `tasks` has the scores [run] of each task. Every task has the same weight.
    """
    above = [(scores[:, None] > levels).astype(np.float64) for scores in tasks]
    share = weighted_mean(np.concatenate(above), task_weights([len(scores) for scores in tasks]))
    return share, *stratified_interval(above, weighted_mean)


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
