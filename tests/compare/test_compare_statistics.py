"""The statistics of a comparison against simple loops and values computed by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from troop.compare import statistics
from troop.compare.statistics import (
    bootstrap_interval,
    first_crossing,
    forward_fill,
    iqm,
    iqm_weights,
    median_time,
    performance_profile,
    probability_of_improvement,
    stratified_interval,
    task_weights,
    weighted_iqm,
    weighted_mean,
)

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)


def reference_iqm(values):
    """Repeat each value four times: a quarter is then a whole number of values, and slicing trims exactly."""
    copies = sorted(value for value in values for _ in range(4))
    middle = copies[len(values) : 3 * len(values)]
    return sum(middle) / len(middle)


@given(st.lists(NUMBERS, min_size=1, max_size=11))
def test_iqm_equals_mean_of_middle_half_of_four_copies(values):
    assert float(iqm(np.array(values))) == pytest.approx(reference_iqm(values), rel=1e-9, abs=1e-6)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 5.0], 3.0),
        ([0.0, 10.0, 100.0], (0 / 4 + 10 + 100 / 4) / 1.5),
        ([1000.0, 2.0, 4.0, -50.0], 3.0),
        ([1.0, 2.0, 3.0, 4.0, 100.0], (2 * 0.75 + 3 + 4 * 0.75) / 2.5),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 800.0], 4.5),
    ],
)
def test_iqm_equals_hand_computed_values(values, expected):
    assert float(iqm(np.array(values))) == pytest.approx(expected)


@given(st.integers(1, 50))
def test_iqm_weights_are_symmetric_and_sum_to_one(count):
    weights = iqm_weights(count)
    assert weights.sum() == pytest.approx(1) and np.allclose(weights, weights[::-1]) and (weights >= 0).all()


def test_iqm_along_an_axis_equals_iqm_of_each_column():
    values = np.random.default_rng(0).normal(size=(5, 3, 4))
    for axis in range(3):
        columns = np.apply_along_axis(reference_iqm, axis, values)
        assert np.allclose(iqm(values, axis), columns)


def test_bootstrap_interval_equals_loop_over_the_same_resamples(monkeypatch):
    monkeypatch.setattr(statistics, "_BLOCK", 3 * 200 * 4)  # seven points span three blocks
    runs = np.random.default_rng(1).normal(size=(4, 7))
    indices = np.random.default_rng(5).integers(0, 4, (200, 4))
    means = [[reference_iqm(runs[chosen, point]) for chosen in indices] for point in range(7)]
    low, high = bootstrap_interval(runs, seed=5, resamples=200)
    for point in range(7):
        ordered = sorted(means[point])
        assert low[point] == pytest.approx(quantile(ordered, 0.025))
        assert high[point] == pytest.approx(quantile(ordered, 0.975))


def quantile(ordered, share):
    """Interpolate linearly between neighbours, as the definition says."""
    position = share * (len(ordered) - 1)
    left = math.floor(position)
    right = min(left + 1, len(ordered) - 1)
    return ordered[left] + (position - left) * (ordered[right] - ordered[left])


def test_bootstrap_interval_agrees_with_exhaustive_enumeration():
    runs = np.array([[1.0], [4.0], [6.0]])
    every = sorted(
        reference_iqm([runs[i, 0] for i in chosen]) for chosen in itertools.product(range(3), repeat=3)
    )
    low, high = bootstrap_interval(runs)
    # 1/27 of all resamples are (1, 1, 1), more than the 2.5 % cut off, so both ends are the extremes.
    assert (low[0], high[0]) == pytest.approx((every[0], every[-1])) == (1.0, 6.0)


def test_bootstrap_interval_depends_only_on_the_seed():
    runs = np.random.default_rng(2).normal(size=(6, 1))
    assert bootstrap_interval(runs, seed=3) == bootstrap_interval(runs, seed=3)
    assert bootstrap_interval(runs, seed=3, resamples=50) != bootstrap_interval(runs, seed=4, resamples=50)


def test_bootstrap_interval_covers_the_true_mean_at_about_the_stated_rate():
    random, hits = np.random.default_rng(0), 0
    for _ in range(200):
        low, high = bootstrap_interval(random.normal(size=(20, 1)), resamples=300)
        hits += low[0] <= 0 <= high[0]
    assert 0.85 <= hits / 200 <= 0.99


def reference_forward_fill(x, values, point):
    last = math.nan
    for position, value in zip(x, values, strict=True):
        if position <= point:
            last = value
    return last


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 9), NUMBERS), min_size=1, max_size=8), st.lists(st.integers(0, 10)))
def test_forward_fill_keeps_a_value_until_the_next(points, grid):
    points.sort(key=lambda point: point[0])
    x, values = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    filled = forward_fill(x, values, np.array(grid, dtype=float))
    assert np.array_equal(
        filled, [reference_forward_fill(x, values, point) for point in grid], equal_nan=True
    )


def test_first_crossing_is_the_first_value_not_below_the_threshold():
    x, values = np.array([1.0, 2.0, 3.0]), np.array([5.0, 9.0, 7.0])
    assert [first_crossing(x, values, threshold) for threshold in (5, 5.1, 9)] == [1, 2, 2]
    assert first_crossing(x, values, 9.1) == math.inf
    assert first_crossing(np.empty(0), np.empty(0), 0) == math.inf


def test_median_time_accepts_infinite_times():
    inf = math.inf
    assert median_time([3.0, inf, 1.0]) == 3.0
    assert [median_time(times) for times in ([inf, 1.0, inf], [1.0, inf], [inf, inf])] == [inf, inf, inf]
    assert median_time([1.0, 2.0]) == 1.5 and median_time([]) == inf


def test_probability_of_improvement_counts_pairs_and_half_of_the_ties():
    inf = math.inf
    assert probability_of_improvement([1.0, 5.0], [3.0, 5.0]) == (1 + 1 + 0 + 0.5) / 4
    assert probability_of_improvement([1.0, inf], [inf, inf]) == (1 + 1 + 0.5 + 0.5) / 4


TASKS = st.lists(st.lists(NUMBERS, min_size=1, max_size=4), min_size=1, max_size=5)


def columns(tasks):
    return [np.array(runs)[:, None] for runs in tasks]


def reference_task_iqm(tasks):
    """Copy the runs of each task until all tasks have the same number, which gives them the same weight."""
    count = math.lcm(*map(len, tasks))
    return reference_iqm([value for runs in tasks for value in runs for _ in range(count // len(runs))])


@given(TASKS)
def test_weighted_iqm_equals_iqm_of_copied_runs(tasks):
    weights = task_weights(list(map(len, tasks)))
    assert weights.sum() == pytest.approx(1)
    value = weighted_iqm(np.concatenate(columns(tasks)), weights)
    assert float(value[0]) == pytest.approx(reference_task_iqm(tasks), rel=1e-9, abs=1e-6)


def test_weighted_iqm_equals_hand_computed_values():
    # Tasks with 1 and 2 runs: weights 1/2, 1/4, 1/4. Sorted 0 (1/4), 4 (1/2), 8 (1/4): the middle half is 4.
    assert weighted_iqm(np.array([[4.0], [0.0], [8.0]]), task_weights([1, 2])) == pytest.approx(4)
    # 0 (1/2), 4 (1/4), 8 (1/4): half of the middle is 0, half is 4.
    assert weighted_iqm(np.array([[0.0], [4.0], [8.0]]), task_weights([1, 2])) == pytest.approx(2)
    assert weighted_mean(np.array([[0.0], [4.0], [8.0]]), task_weights([1, 2])) == pytest.approx(3)


def test_stratified_interval_equals_loop_over_the_same_resamples(monkeypatch):
    monkeypatch.setattr(statistics, "_BLOCK", 2 * 100 * 5)  # five points span three blocks
    random = np.random.default_rng(3)
    tasks = [random.normal(size=(count, 5)) for count in (3, 1, 1)]
    draws = np.random.default_rng(7)
    chosen = [draws.integers(0, len(runs), (100, len(runs))) for runs in tasks]
    low, high = stratified_interval(tasks, seed=7, resamples=100)
    for point in range(5):
        means = sorted(
            reference_task_iqm(
                [[runs[i, point] for i in draw[sample]] for runs, draw in zip(tasks, chosen, strict=True)]
            )
            for sample in range(100)
        )
        assert low[point] == pytest.approx(quantile(means, 0.025))
        assert high[point] == pytest.approx(quantile(means, 0.975))


def test_stratified_interval_of_single_runs_has_no_width():
    low, high = stratified_interval([np.array([[0.2]]), np.array([[0.8]]), np.array([[0.5]])])
    assert low == high == pytest.approx(0.5)


@settings(max_examples=30, deadline=None)
@given(TASKS, st.lists(NUMBERS, min_size=1, max_size=5))
def test_performance_profile_is_the_mean_over_tasks_of_the_share_of_runs_above(tasks, levels):
    share, low, high = performance_profile([np.array(runs) for runs in tasks], np.array(levels))
    for index, level in enumerate(levels):
        shares = [sum(value > level for value in runs) / len(runs) for runs in tasks]
        assert share[index] == pytest.approx(sum(shares) / len(shares))
    assert ((low <= share + 1e-9) & (share <= high + 1e-9)).all()


def test_performance_profile_equals_hand_computed_values():
    share, low, high = performance_profile([np.array([0.2, 0.6]), np.array([1.0])], np.array([0.0, 0.2, 0.9]))
    assert share.tolist() == [1, 0.75, 0.5]  # a score equal to the level is not above it
    assert (low.tolist(), high.tolist()) == ([1, 0.5, 0.5], [1, 1, 0.5])
