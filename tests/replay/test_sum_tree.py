import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from troop.replay.storage.sum_tree import SumTree


def slow_find(leaves, mass):
    """The first leaf whose running sum passes the mass."""
    return int(np.searchsorted(np.cumsum(leaves), mass, side="right"))


batches = st.lists(
    st.lists(
        st.tuples(st.integers(0, 12), st.sampled_from([0.0, 0.0, 0.5, 1.0, 3.0, 1e-6, 1e6])), min_size=1
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 13), batches)
def test_sums_counts_and_least_are_those_of_the_leaves_after_any_updates(leaves, updates):
    tree, slow = SumTree(leaves, with_least=True), np.zeros(leaves)
    for update in updates:
        chosen = np.array([leaf % leaves for leaf, _ in update])
        value = np.array([v for _, v in update])
        tree.set(chosen, value)
        for leaf, v in zip(chosen, value, strict=True):
            slow[leaf] = v
        assert np.array_equal(tree.get(np.arange(leaves)), slow)
        assert tree.total == pytest.approx(slow.sum(), rel=1e-12)
        assert tree.count == (slow > 0).sum()
        assert tree.least == min(slow[slow > 0], default=np.inf)
        # Every inner node is the sum of its children, exactly: sums cannot drift.
        inner = np.arange(1, tree.size)
        assert np.array_equal(tree.tree[inner], tree.tree[2 * inner] + tree.tree[2 * inner + 1])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.25, 1.0, 7.0]), min_size=1, max_size=20), st.integers(0, 2**31))
def test_masses_fall_where_the_running_sum_says(leaves, seed):
    leaves = np.array(leaves)
    if not leaves.any():
        return
    tree = SumTree(len(leaves))
    tree.set(np.arange(len(leaves)), leaves)
    mass = np.concatenate(
        (np.random.default_rng(seed).random(50) * leaves.sum(), np.cumsum(leaves)[:-1][leaves[:-1] > 0])
    )
    mass = mass[mass < leaves.sum()]
    assert tree.find(mass.copy()).tolist() == [slow_find(leaves, m) for m in mass]


def test_a_mass_at_or_past_the_end_still_falls_on_a_leaf_that_has_some():
    tree = SumTree(6)
    tree.set(np.array([1, 3]), np.array([0.1, 0.2]))
    assert tree.find(np.array([tree.total, tree.total * (1 + 1e-12), 10.0, 0.0])).tolist() == [3, 3, 3, 1]


def test_leaves_are_found_as_often_as_they_weigh():
    random = np.random.default_rng(0)
    weights = random.random(200) ** 3
    weights[::5] = 0
    tree = SumTree(200)
    tree.set(np.arange(200), weights)
    draws = 200_000
    found = np.bincount(tree.find(random.random(draws) * tree.total), minlength=200)
    expected = weights / weights.sum() * draws
    assert not found[::5].any()
    some = expected > 0
    chi_square = ((found[some] - expected[some]) ** 2 / expected[some]).sum()
    degrees = some.sum() - 1
    assert chi_square < degrees + 5 * np.sqrt(2 * degrees)


def test_a_hundred_thousand_updates_leave_no_drift():
    random, tree = np.random.default_rng(1), SumTree(1000)
    for _ in range(100):
        tree.set(random.integers(0, 1000, 1000), random.random(1000) * 10.0 ** random.integers(-6, 6))
    assert tree.total == pytest.approx(tree.get(np.arange(1000)).sum(), rel=1e-12)
