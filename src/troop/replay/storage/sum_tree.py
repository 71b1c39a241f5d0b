"""SumTree over priorities: sets, reads and finds batches of leaves in O(batch log n).

The compiled loops process the whole batch level by level, so that the cache misses of different rows overlap;
row by row the same tree is three times slower (docs/explanation/results/benchmarks.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from troop.replay.storage.kernels import Array
from troop.replay.storage.lazy_numba import njit_lazy


@njit_lazy
def _set(tree: Array, minimum: Array, size: int, leaf: Array, value: Array) -> Any:  # noqa: ANN401
    """Set leaves and recompute the nodes above them; return the change in the number of leaves above zero.

    If a leaf occurs twice, its last value counts. Sums are recomputed from both children instead of adding
    differences, so they neither count a leaf twice nor accumulate rounding errors.
    """
    rows = leaf.shape[0]
    change: Any = 0
    node = np.empty(rows, np.int64)
    for i in range(rows):
        at = size + leaf[i]
        change += np.int64(value[i] > 0) - np.int64(tree[at] > 0)
        tree[at] = value[i]
        node[i] = at
    track_min = minimum.shape[0] > 1
    if track_min:
        for i in range(rows):
            minimum[node[i]] = tree[node[i]] if tree[node[i]] > 0 else np.inf
    level = size
    while level > 1:
        level //= 2
        last = np.int64(-1)
        for i in range(rows):
            at = node[i] >> 1
            node[i] = at
            if at == last:  # neighbouring leaves share their parents
                continue
            last = at
            tree[at] = tree[2 * at] + tree[2 * at + 1]
            if track_min:
                minimum[at] = min(minimum[2 * at], minimum[2 * at + 1])
    return change


@njit_lazy
def _find(tree: Array, size: int, prefix_sum: Array, leaf: Array) -> None:
    """Find the leaf in which each prefix sum falls, never one of zero; overwrites `prefix_sum`."""
    rows = prefix_sum.shape[0]
    for i in range(rows):
        leaf[i] = 1
    level = 1
    while level < size:
        level *= 2
        for i in range(rows):
            left = 2 * leaf[i]
            below = tree[left]
            # Rounding may push a prefix sum past the last leaf above zero: then the other side is taken.
            right = (prefix_sum[i] >= below and tree[left + 1] > 0) or below <= 0
            leaf[i] = left + right
            prefix_sum[i] -= below if right else 0.0
    for i in range(rows):
        leaf[i] -= size


class SumTree:
    """`leaves` non-negative numbers, their sum, and the leaf in which a prefix sum falls."""

    def __init__(self, leaves: int, track_min: bool = False) -> None:
        self.leaves, self.size = leaves, 1 << max(leaves - 1, 1).bit_length()
        self.tree = np.zeros(2 * self.size)  # node 1 is the root, node size + i is leaf i
        self._minimum = np.full(2 * self.size if track_min else 1, np.inf)
        self.count = 0  # leaves above zero

    @property
    def total(self) -> float:
        """Sum of all leaves."""
        return float(self.tree[1])

    @property
    def minimum(self) -> float:
        """Smallest leaf above zero; infinite if there is none, or without `track_min`."""
        return float(self._minimum[1 if len(self._minimum) > 1 else 0])

    def set(self, leaf: Array, value: Array) -> None:
        """Set these leaves; if a leaf occurs twice, its last value counts."""
        self.count += int(_set(self.tree, self._minimum, self.size, leaf, value))

    def get(self, leaf: Array) -> Array:
        """Return the values of these leaves."""
        values: Array = self.tree[self.size + leaf]
        return values

    def find(self, prefix_sum: Array) -> Array:
        """Return the leaf in which each prefix sum in [0, total) falls; overwrites `prefix_sum`."""
        leaf = np.empty(len(prefix_sum), np.int64)
        _find(self.tree, self.size, prefix_sum, leaf)
        return leaf
