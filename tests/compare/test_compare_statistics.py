"""The statistics of a comparison against slow obvious code and numbers by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from troop.compare import statistics
from troop.compare.statistics import (
    first_at,
    held,
    interval,
    iqm,
    middle_time,
    middle_weights,
    probability_of_improvement,
)

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)


def slow_iqm(values):
    """Each value four times: then a quarter of them is a whole number, and trimming is plain slicing."""
    copies = sorted(value for value in values for _ in range(4))
    middle = copies[len(values) : 3 * len(values)]
    return sum(middle) / len(middle)


@given(st.lists(NUMBERS, min_size=1, max_size=11))
def test_iqm_is_the_mean_of_the_middle_half_of_four_copies(values):
    assert float(iqm(np.array(values))) == pytest.approx(slow_iqm(values), rel=1e-9, abs=1e-6)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([7.0], 7.0),
        ([1.0, 5.0], 3.0),
        ([0.0, 10.0, 100.0], (0 / 4 + 10 + 100 / 4) / 1.5),
        ([1000.0, 2.0, 4.0, -50.0], 3.0),
        ([1.0, 2.0, 3.0, 4.0, 100.0], (2 * 0.75 + 3 + 4 * 0.75) / 2.5),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 800.0], 4.5),
    ],
)
def test_iqm_by_hand(values, wanted):
    assert float(iqm(np.array(values))) == pytest.approx(wanted)


@given(st.integers(1, 50))
def test_weights_sum_to_one_and_are_the_same_from_both_ends(count):
    found = middle_weights(count)
    assert found.sum() == pytest.approx(1) and np.allclose(found, found[::-1]) and (found >= 0).all()


def test_iqm_along_an_axis_is_that_of_each_column():
    values = np.random.default_rng(0).normal(size=(5, 3, 4))
    for axis in range(3):
        columns = np.apply_along_axis(slow_iqm, axis, values)
        assert np.allclose(iqm(values, axis), columns)


def test_the_interval_is_that_of_a_loop_over_the_same_draws(monkeypatch):
    monkeypatch.setattr(statistics, "_BLOCK", 3)  # so that blocks join up within seven points
    runs = np.random.default_rng(1).normal(size=(4, 7))
    drawn = np.random.default_rng(5).integers(0, 4, (200, 4))
    found = [[slow_iqm(runs[picked, point]) for picked in drawn] for point in range(7)]
    low, high = interval(runs, seed=5, rounds=200)
    for point in range(7):
        ordered = sorted(found[point])
        assert low[point] == pytest.approx(between(ordered, 0.025))
        assert high[point] == pytest.approx(between(ordered, 0.975))


def between(ordered, share):
    """The quantile by its definition: linear between neighbours."""
    place = share * (len(ordered) - 1)
    left = math.floor(place)
    right = min(left + 1, len(ordered) - 1)
    return ordered[left] + (place - left) * (ordered[right] - ordered[left])


def test_the_interval_agrees_with_all_draws_there_are():
    runs = np.array([[1.0], [4.0], [6.0]])
    every = sorted(slow_iqm([runs[i, 0] for i in drawn]) for drawn in itertools.product(range(3), repeat=3))
    low, high = interval(runs)
    # 1/27 of all draws are (1, 1, 1), more than the 2.5 % that are cut off, so both ends are the extremes.
    assert (low[0], high[0]) == pytest.approx((every[0], every[-1])) == (1.0, 6.0)


def test_the_interval_is_the_same_for_a_seed_and_another_for_another():
    runs = np.random.default_rng(2).normal(size=(6, 1))
    assert interval(runs, seed=3) == interval(runs, seed=3)
    assert interval(runs, seed=3, rounds=50) != interval(runs, seed=4, rounds=50)


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    random, hits = np.random.default_rng(0), 0
    for _ in range(200):
        low, high = interval(random.normal(size=(20, 1)), rounds=300)
        hits += low[0] <= 0 <= high[0]
    assert 0.85 <= hits / 200 <= 0.99


def slow_held(at, values, where):
    found = math.nan
    for when, value in zip(at, values, strict=True):
        if when <= where:
            found = value
    return found


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 9), NUMBERS), min_size=1, max_size=8), st.lists(st.integers(0, 10)))
def test_values_are_held_until_the_next(points, where):
    points.sort(key=lambda point: point[0])
    at, values = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    found = held(at, values, np.array(where, dtype=float))
    assert np.array_equal(found, [slow_held(at, values, x) for x in where], equal_nan=True)


def test_a_threshold_is_reached_at_the_first_value_not_below_it():
    at, values = np.array([1.0, 2.0, 3.0]), np.array([5.0, 9.0, 7.0])
    assert first_at(at, values, 5) == 1 and first_at(at, values, 5.1) == 2 and first_at(at, values, 9) == 2
    assert first_at(at, values, 9.1) == math.inf
    assert first_at(np.empty(0), np.empty(0), 0) == math.inf


def test_the_median_of_times_that_never_came():
    inf = math.inf
    assert middle_time([3.0, inf, 1.0]) == 3.0
    assert (
        middle_time([inf, 1.0, inf]) == inf
        and middle_time([1.0, inf]) == inf
        and middle_time([inf, inf]) == inf
    )
    assert middle_time([1.0, 2.0]) == 1.5 and middle_time([]) == inf


def test_sooner_counts_pairs():
    inf = math.inf
    assert probability_of_improvement([1.0, 5.0], [3.0, 5.0]) == (1 + 1 + 0 + 0.5) / 4
    assert probability_of_improvement([1.0, inf], [inf, inf]) == (1 + 1 + 0.5 + 0.5) / 4
