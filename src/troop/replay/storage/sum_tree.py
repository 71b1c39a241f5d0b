"""A sum-tree over priorities: batches of leaves are set, found and summed in O(batch log n).

The loops are compiled and run level by level over the whole batch, so that the cache misses of one row
overlap with those of the others; row by row the same tree is three times slower (docs/results/bench.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from troop.replay.storage.kernels import Array
from troop.replay.storage.lazy_numba import compiled


@compiled
def _set(tree: Array, least: Array, size: int, leaf: Array, value: Array) -> Any:  # noqa: ANN401
    """Set leaves and mend the sums above them; the change in the number of leaves above zero.

    Of a leaf that comes twice the last value stands: sums are made anew from both children, never by adding
    differences, so they neither count twice nor drift.
    """
    rows = leaf.shape[0]
    change: Any = 0
    node = np.empty(rows, np.int64)
    for i in range(rows):
        at = size + leaf[i]
        change += np.int64(value[i] > 0) - np.int64(tree[at] > 0)
        tree[at] = value[i]
        node[i] = at
    bounded = least.shape[0] > 1
    if bounded:
        for i in range(rows):
            least[node[i]] = tree[node[i]] if tree[node[i]] > 0 else np.inf
    level = size
    while level > 1:
        level //= 2
        last = np.int64(-1)
        for i in range(rows):
            at = node[i] >> 1
            node[i] = at
            if at == last:  # neighbours share their parents
                continue
            last = at
            tree[at] = tree[2 * at] + tree[2 * at + 1]
            if bounded:
                least[at] = min(least[2 * at], least[2 * at + 1])
    return change


@compiled
def _find(tree: Array, size: int, mass: Array, leaf: Array) -> None:
    """The leaf in which each mass falls, leaves lying side by side; never one of zero."""
    rows = mass.shape[0]
    for i in range(rows):
        leaf[i] = 1
    level = 1
    while level < size:
        level *= 2
        for i in range(rows):
            left = 2 * leaf[i]
            below = tree[left]
            # Rounding may push a mass past the last leaf that has any: then the other side is taken.
            right = (mass[i] >= below and tree[left + 1] > 0) or below <= 0
            leaf[i] = left + right
            mass[i] -= below if right else 0.0
    for i in range(rows):
        leaf[i] -= size


class SumTree:
    """`leaves` numbers of at least 0, their sum, and which leaf a part of the sum falls in."""

    def __init__(self, leaves: int, with_least: bool = False) -> None:
        self.leaves, self.size = leaves, 1 << max(leaves - 1, 1).bit_length()
        self.tree = np.zeros(2 * self.size)  # 1 is the root, size + i the leaf i
        self._least = np.full(2 * self.size if with_least else 1, np.inf)
        self.count = 0  # leaves above zero

    @property
    def total(self) -> float:
        """The sum of all leaves."""
        return float(self.tree[1])

    @property
    def least(self) -> float:
        """The smallest leaf above zero; infinite if there is none or nobody asked for it to be known."""
        return float(self._least[1 if len(self._least) > 1 else 0])

    def set(self, leaf: Array, value: Array) -> None:
        """Set these leaves; of one that comes twice the last value stands."""
        self.count += int(_set(self.tree, self._least, self.size, leaf, value))

    def get(self, leaf: Array) -> Array:
        """The values of these leaves."""
        values: Array = self.tree[self.size + leaf]
        return values

    def find(self, mass: Array) -> Array:
        """The leaf in which each mass in [0, total) falls; `mass` is used up."""
        leaf = np.empty(len(mass), np.int64)
        _find(self.tree, self.size, mass, leaf)
        return leaf
