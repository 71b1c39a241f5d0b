"""Moments of samples that several learners share."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from troop.core.peers import Moments


def moments(x):
    var, mean = torch.var_mean(x, 0, correction=0)
    return Moments(torch.tensor(float(len(x)), dtype=x.dtype), mean, var, x.abs().amax(0))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=6), st.integers(0, 99), st.booleans())
def test_merged_moments_are_those_of_all_samples_in_any_order(sizes, seed, reverse):
    generator = torch.Generator().manual_seed(seed)
    batches = [
        torch.randn(n, 3, generator=generator, dtype=torch.float64) * (i + 1) + 10 * i
        for i, n in enumerate(sizes)
    ]
    parts = [moments(x) for x in batches]
    merged = functools.reduce(Moments.merge, reversed(parts) if reverse else parts)
    expected = moments(torch.cat(batches))
    for name, x in expected.as_dict().items():
        assert torch.allclose(getattr(merged, name), x, rtol=1e-9), name


@pytest.mark.reliability("N3")
def test_columns_that_are_not_finite_keep_their_values():
    x = torch.randn(10, 3)
    bad = torch.randn(10, 3)
    bad[4, 1] = torch.nan
    bad[5, 2] = torch.inf
    merged = moments(x).merge(moments(bad))
    for name in ("mean", "var", "max_abs"):
        assert torch.equal(getattr(merged, name)[1:], getattr(moments(x), name)[1:])
        assert torch.isfinite(getattr(merged, name)).all()


def test_no_samples_do_not_change_the_moments():
    zero = torch.zeros(())
    empty = Moments(zero, zero, torch.ones(()), zero)
    x = moments(torch.tensor([1.0, 3.0]))
    for merged in (empty.merge(x), x.merge(empty)):
        assert (merged.count, merged.mean, merged.var, merged.max_abs) == (2, 2, 1, 3)
    assert empty.merge(empty).var == 1
