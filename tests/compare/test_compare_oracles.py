"""The statistics of a comparison against scipy and rliable as oracles."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from rliable import library, metrics

from troop.compare.statistics import (
    bootstrap_interval,
    iqm,
    performance_profile,
    probability_of_improvement,
    stratified_interval,
    task_weights,
    weighted_iqm,
)

SCORES = st.floats(-1e6, 1e6, allow_nan=False)
TIMES = st.lists(st.sampled_from([1.0, 2.0, 3.0, 5.0, 8.0, math.inf]), min_size=1, max_size=8)
RESAMPLES = 10_000
CASES = [(4, 0), (5, 1), (8, 2), (10, 3), (20, 4)]  # runs, seed


@settings(deadline=None)
@given(st.lists(SCORES, min_size=4, max_size=24).filter(lambda scores: len(scores) % 4 == 0))
def test_iqm_of_a_multiple_of_four_equals_scipy_and_rliable(scores):
    values = np.array(scores)
    expected = scipy.stats.trim_mean(values, 0.25)
    assert float(iqm(values)) == pytest.approx(expected, rel=1e-9, abs=1e-6)
    assert float(iqm(values)) == pytest.approx(metrics.aggregate_iqm(values[:, None]), rel=1e-9, abs=1e-6)


@settings(deadline=None)
@given(st.lists(SCORES, min_size=1, max_size=11))
def test_iqm_of_any_count_equals_scipy_on_four_copies(scores):
    # trim_mean trims whole values only; of four copies of each value it trims exactly a quarter.
    values = np.array(scores)
    expected = scipy.stats.trim_mean(np.repeat(values, 4), 0.25)
    assert float(iqm(values)) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def monte_carlo_tolerance(values):
    """Return four standard errors of both bounds of a percentile interval, measured by repeating it."""
    bounds = np.array([bootstrap_interval(values[:, None], seed, RESAMPLES) for seed in range(100, 130)])
    return 4 * math.sqrt(2) * bounds[:, :, 0].std(axis=0) + 1e-9


@pytest.mark.parametrize(("runs", "seed"), CASES)
def test_bootstrap_interval_equals_scipy_within_monte_carlo_error(runs, seed):
    values = np.random.default_rng(seed).normal(100.0, 30.0, runs)
    expected = scipy.stats.bootstrap(
        (values,),
        lambda sample, axis: iqm(sample, axis),
        n_resamples=RESAMPLES,
        confidence_level=0.95,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    low, high = bootstrap_interval(values[:, None], resamples=RESAMPLES)
    difference = np.abs([low[0] - expected.low, high[0] - expected.high])
    assert (difference <= monte_carlo_tolerance(values)).all()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # how rliable passes its seed to arch
@pytest.mark.parametrize(("runs", "seed"), [case for case in CASES if case[0] % 4 == 0])
def test_bootstrap_interval_equals_rliable_within_monte_carlo_error(runs, seed):
    values = np.random.default_rng(seed).normal(100.0, 30.0, runs)
    point, expected = library.get_interval_estimates(
        {"recipe": values[:, None]},
        lambda scores: np.array([metrics.aggregate_iqm(scores)]),
        reps=RESAMPLES,
        random_state=np.random.RandomState(seed),
    )
    assert float(iqm(values)) == pytest.approx(float(point["recipe"][0]))
    low, high = bootstrap_interval(values[:, None], resamples=RESAMPLES)
    difference = np.abs(np.array([low[0], high[0]]) - expected["recipe"][:, 0])
    assert (difference <= monte_carlo_tolerance(values)).all()


def test_the_tolerance_rejects_an_interval_of_another_level():
    values = np.random.default_rng(4).normal(100.0, 30.0, 20)
    low, high = bootstrap_interval(values[:, None], resamples=RESAMPLES)
    other_low, other_high = bootstrap_interval(values[:, None], resamples=RESAMPLES, confidence=0.9)
    difference = np.abs([low[0] - other_low[0], high[0] - other_high[0]])
    assert (difference > monte_carlo_tolerance(values)).all()


@settings(max_examples=200, deadline=None)
@given(TIMES, TIMES)
def test_probability_of_improvement_equals_mann_whitney_u_per_pair(times, other_times):
    # A shorter time is better, so the oracle compares negated times.
    statistic = scipy.stats.mannwhitneyu(
        [-time for time in times], [-time for time in other_times], method="asymptotic"
    ).statistic
    expected = statistic / (len(times) * len(other_times))
    assert probability_of_improvement(times, other_times) == pytest.approx(expected)


@settings(max_examples=200, deadline=None)
@given(TIMES, TIMES)
def test_probability_of_improvement_equals_rliable(times, other_times):
    expected = metrics.probability_of_improvement(-np.array(times)[:, None], -np.array(other_times)[:, None])
    assert probability_of_improvement(times, other_times) == pytest.approx(expected)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("runs", "tasks"), [(2, 6), (4, 3), (3, 12)])
def test_iqm_over_tasks_and_its_stratified_interval_equal_rliable(runs, tasks):
    scores = np.random.default_rng(runs).normal(0.7, 0.3, (runs, tasks))
    columns = [scores[:, [task]] for task in range(tasks)]
    point, expected = library.get_interval_estimates(
        {"recipe": scores},
        lambda matrix: np.array([metrics.aggregate_iqm(matrix)]),
        reps=RESAMPLES,
        random_state=np.random.RandomState(0),
    )
    value = weighted_iqm(np.concatenate(columns), task_weights([runs] * tasks))
    assert float(value[0]) == pytest.approx(float(point["recipe"][0]))
    bounds = np.array([stratified_interval(columns, seed=seed, resamples=2_000) for seed in range(20)])[
        :, :, 0
    ]
    low, high = stratified_interval(columns, resamples=RESAMPLES)
    difference = np.abs(np.array([low[0], high[0]]) - expected["recipe"][:, 0])
    assert (difference <= 4 * bounds.std(axis=0) + 1e-9).all()


def test_performance_profile_equals_rliable():
    scores = np.random.default_rng(1).normal(0.7, 0.3, (5, 7))
    levels = np.linspace(0, 1.2, 13)
    expected, _ = library.create_performance_profile({"recipe": scores}, levels, reps=100)
    share, _, _ = performance_profile([scores[:, task] for task in range(7)], levels)
    assert np.allclose(share, expected["recipe"])
