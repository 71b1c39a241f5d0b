import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from troop.replay.storage.sum_tree import SumTree


def reference_find(leaves, prefix_sum):
    """Return the first leaf whose cumulative sum is above `prefix_sum`."""
    return int(np.searchsorted(np.cumsum(leaves), prefix_sum, side="right"))


batches = st.lists(
    st.lists(
        st.tuples(st.integers(0, 12), st.sampled_from([0.0, 0.0, 0.5, 1.0, 3.0, 1e-6, 1e6])), min_size=1
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 13), batches)
def test_total_count_and_minimum_are_correct_after_any_updates(leaves, updates):
    tree, reference = SumTree(leaves, track_min=True), np.zeros(leaves)
    for update in updates:
        chosen = np.array([leaf % leaves for leaf, _ in update])
        value = np.array([v for _, v in update])
        tree.set(chosen, value)
        for leaf, v in zip(chosen, value, strict=True):
            reference[leaf] = v
        assert np.array_equal(tree.get(np.arange(leaves)), reference)
        assert tree.total == pytest.approx(reference.sum(), rel=1e-12)
        assert tree.count == (reference > 0).sum()
        assert tree.minimum == min(reference[reference > 0], default=np.inf)
        # Every inner node is exactly the sum of its children: rounding errors do not accumulate.
        inner = np.arange(1, tree.size)
        assert np.array_equal(tree.tree[inner], tree.tree[2 * inner] + tree.tree[2 * inner + 1])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.25, 1.0, 7.0]), min_size=1, max_size=20), st.integers(0, 2**31))
def test_find_agrees_with_the_cumulative_sum(leaves, seed):
    leaves = np.array(leaves)
    if not leaves.any():
        return
    tree = SumTree(len(leaves))
    tree.set(np.arange(len(leaves)), leaves)
    prefix_sum = np.concatenate(
        (np.random.default_rng(seed).random(50) * leaves.sum(), np.cumsum(leaves)[:-1][leaves[:-1] > 0])
    )
    prefix_sum = prefix_sum[prefix_sum < leaves.sum()]
    assert tree.find(prefix_sum.copy()).tolist() == [reference_find(leaves, x) for x in prefix_sum]


def test_prefix_sum_at_or_beyond_the_total_finds_a_leaf_above_zero():
    tree = SumTree(6)
    tree.set(np.array([1, 3]), np.array([0.1, 0.2]))
    assert tree.find(np.array([tree.total, tree.total * (1 + 1e-12), 10.0, 0.0])).tolist() == [3, 3, 3, 1]


def test_leaves_are_found_in_proportion_to_their_value():
    random = np.random.default_rng(0)
    values = random.random(200) ** 3
    values[::5] = 0
    tree = SumTree(200)
    tree.set(np.arange(200), values)
    draws = 200_000
    counts = np.bincount(tree.find(random.random(draws) * tree.total), minlength=200)
    expected = values / values.sum() * draws
    assert not counts[::5].any()
    positive = expected > 0
    chi_square = ((counts[positive] - expected[positive]) ** 2 / expected[positive]).sum()
    degrees = positive.sum() - 1
    assert chi_square < degrees + 5 * np.sqrt(2 * degrees)


def test_rounding_errors_do_not_accumulate_over_many_updates():
    random, tree = np.random.default_rng(1), SumTree(1000)
    for _ in range(100):
        tree.set(random.integers(0, 1000, 1000), random.random(1000) * 10.0 ** random.integers(-6, 6))
    assert tree.total == pytest.approx(tree.get(np.arange(1000)).sum(), rel=1e-12)
