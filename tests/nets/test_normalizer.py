import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from troop.nets.normalizer import Normalizer

batch = st.tuples(st.integers(1, 9), st.floats(-20, 20), st.floats(0, 5), st.integers(0, 2**20))


def rows(size, mean, spread, seed):
    return mean + spread * torch.randn(size, 2, generator=torch.Generator().manual_seed(seed))


def updated(batches, columns=2):
    normalizer = Normalizer(columns)
    for x in batches:
        normalizer.update(x)
    return normalizer


@given(st.lists(batch, min_size=1, max_size=8))
def test_batches_merge_into_the_statistics_of_all_rows_at_once(sampled):
    batches = [rows(*one) for one in sampled]
    normalizer = updated(batches)
    for column in range(2):
        values = torch.cat(batches)[:, column].tolist()
        assert normalizer.mean[column].item() == pytest.approx(statistics.fmean(values), abs=1e-3)
        assert normalizer.var[column].item() == pytest.approx(
            statistics.pvariance(values), rel=1e-3, abs=1e-3
        )
    assert normalizer.count.item() == sum(len(x) for x in batches)


def test_alternating_means_give_the_full_variance():
    # Four equal batches of means -2.5, +2.5, ... and variance 1: 1 + 2.5^2 in all. Taking the difference of
    # means after the mean has moved, as the reference does, loses most of the second term.
    batches = [torch.tensor([[m - 1.0], [m + 1.0]]) for m in (-2.5, 2.5, -2.5, 2.5)]
    assert updated(batches, 1).var.item() == pytest.approx(7.25)


@given(st.permutations([(5, -3.0, 1.0, 1), (2, 9.0, 0.5, 2), (8, 0.0, 2.0, 3), (1, 4.0, 0.0, 4)]))
def test_the_order_of_batches_does_not_matter(order):
    here = updated(rows(*one) for one in order)
    there = updated(rows(*one) for one in sorted(order))
    assert torch.allclose(here.mean, there.mean, atol=1e-4)
    assert torch.allclose(here.var, there.var, rtol=1e-4)


def test_forward_is_the_difference_from_the_mean_over_std_plus_eps():
    x = torch.tensor([[1.0, 10.0], [3.0, 10.0]])  # mean 2, std 1; mean 10, std 0
    found = updated([x])(torch.tensor([[4.0, 10.5]]))
    assert found.tolist()[0] == pytest.approx([2 / 1.01, 0.5 / 0.01], rel=1e-4)


def test_other_dtypes_are_converted():
    x = rows(9, 1.0, 2.0, 0)
    assert torch.allclose(updated([x.double()]).var, updated([x]).var)


def test_forward_has_no_side_effect_in_training_mode():
    normalizer = updated([rows(5, 1.0, 2.0, 0)]).train()
    before = {name: x.clone() for name, x in normalizer.state_dict().items()}
    first, second = (normalizer(rows(5, 9.0, 1.0, 1)) for _ in range(2))
    assert torch.equal(first, second)
    assert all(torch.equal(x, before[name]) for name, x in normalizer.state_dict().items())


def test_before_any_update_it_is_almost_the_identity():
    x = rows(5, 0.0, 3.0, 0)
    assert torch.allclose(Normalizer(2)(x), x / 1.01)


def test_a_narrower_input_uses_the_first_columns():
    normalizer = updated([rows(50, 3.0, 2.0, 0)])
    x = rows(6, 1.0, 1.0, 1)
    assert torch.equal(normalizer(x[:, :1]), normalizer(x)[:, :1])


@pytest.mark.reliability("N3")
def test_constant_columns_stay_finite_and_near_zero():
    normalizer = updated([torch.full((100, 1), 7.3)] * 20, 1)
    assert normalizer(torch.full((3, 1), 7.3)).abs().max() < 1e-2


@pytest.mark.parametrize("bad", [1e30, -1e30, 3e38, float("inf"), float("nan")])
@pytest.mark.reliability("N3")
def test_a_column_that_overflows_keeps_finite_statistics(bad):
    spoiled = rows(8, 2.0, 1.0, 1)
    spoiled[3, 0] = bad
    normalizer = updated([rows(8, 2.0, 1.0, 0), spoiled])
    assert all(torch.isfinite(x).all() for x in normalizer.state_dict().values())
    sound = updated([rows(8, 2.0, 1.0, 0), rows(8, 2.0, 1.0, 1)])
    assert normalizer.mean[1] == sound.mean[1] and normalizer.var[1] == sound.var[1]
    assert normalizer.mean[0] == updated([rows(8, 2.0, 1.0, 0)]).mean[0]


def test_statistics_are_part_of_the_state_dict():
    normalizer, other = updated([rows(9, 3.0, 2.0, 0)]), Normalizer(2)
    other.load_state_dict(normalizer.state_dict())
    x = rows(4, 0.0, 1.0, 1)
    assert torch.equal(other(x), normalizer(x))
    for one in (normalizer, other):
        one.update(x)
    assert torch.equal(other.var, normalizer.var)


def test_batches_after_the_warm_up_weigh_as_much_as_those_before():
    """A jump of the mean from 0 to 10 after 1,000 of 11,000 updates: the mean is 9.1, not 5."""
    normalizer = Normalizer(1)
    for update in range(11_000):
        if weight := Normalizer.merge_weight(update):
            normalizer.update(torch.full((4, 1), 0.0 if update < 1000 else 10.0), weight)
    assert normalizer.mean.item() == pytest.approx(10 * 10_000 / 11_000, abs=0.01)
    assert normalizer.var.item() == pytest.approx(100 * (1000 / 11_000) * (10_000 / 11_000), rel=0.01)
    assert normalizer.count.item() == 4 * 11_000
