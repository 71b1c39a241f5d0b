"""The loops over rows that sampling consists of, compiled: each reads every row it needs once.

As a chain of tensor operations the same work costs three times one gather of the batch
(docs/results/bench.md). `kernels_torch.py` has the same functions as tensor operations,
for replays that live on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from troop.replay.storage.lazy_numba import compiled

TERMINATED, TRUNCATED, CLOSING = 1, 2, 4
FRESH = 8  # a stack of frames begins here: what came before is this frame again
TRIES = 8
BLOCK = 128

Array = np.ndarray[Any, Any]


@compiled
def rehash(random: Any, again: Any) -> Any:  # noqa: ANN401 - int64s of numba's
    """A number in [0, 2^32) of a random one below 2^62: its upper half, or another for each try `again`."""
    if again:  # the mixing of SplitMix64, cut to what int64 can hold
        random += again
        random = (random ^ (random >> 30)) * np.int64(0x1CE4E5B9)
        random = (random ^ (random >> 27)) * np.int64(0x133111EB)
        random = (random ^ (random >> 31)) & np.int64(0x3FFFFFFFFFFFFFFF)
    return random >> 30


@compiled
def _free(head: Any, length: int, span: int, margin: int) -> Any:  # noqa: ANN401 - an int64 of numba's
    """Complete windows of a stream."""
    held = min(head, length)
    return max(held - span - (margin if head > length else 0), 0)


@compiled
def draw(
    random: Array,
    share: float,
    heads: Array,
    length: int,
    span: int,
    margin: int,
    flags: Array,
    place: Array,
) -> int:
    """Fill `place` with rows that are transitions, uniformly; returns how many were not found (set to -1).

    Streams are chosen at equal steps through all complete windows, so each gets its share to within one row;
    `share` in [0, 1) shifts them. A window is complete if its start is held, `margin` rows after the oldest
    of a full ring, and `span` rows follow it.
    """
    streams = heads.shape[0]
    total = 0
    for s in range(streams):
        total += _free(heads[s], length, span, margin)
    missing, s, rows = 0, -1, place.shape[0]
    end, free, base, oldest = 0, 0, -length, 0
    for i in range(rows):
        target = min(int((i + share) * total / rows), total - 1)
        while end <= target:
            s += 1
            free = _free(heads[s], length, span, margin)
            end += free
            base += length
            oldest = (heads[s] + margin) % length if heads[s] > length else 0
        found, offset = np.int64(-1), np.int64(0)
        for again in range(TRIES):
            # A share of 2^32 times `free`: a product instead of a division.
            offset = (rehash(random[i], again) * free) >> 32
            at = oldest + offset
            at = base + (at - length if at >= length else at)
            if not flags[at] & CLOSING:
                found = at
                break
        if found < 0:  # nearly all rows are closing ones: the next that is not
            for ahead in range(1, free):
                at = base + (oldest + (offset + ahead) % free) % length
                if not flags[at] & CLOSING:
                    found = at
                    break
        place[i] = found
        missing += int(found < 0)
    return missing


@compiled
def windows(
    place: Array,
    length: int,
    reward: Array,
    flags: Array,
    powers: Array,
    final: int,
    total: Array,
    discount: Array,
    successor: Array,
) -> float:
    """Sum the n-step windows that start at `place` up to their episode's end.

    A row counts if no earlier row of the window ended the episode and it is not a closing row itself. The
    successor is the row after the last that counted; `discount` is gamma^steps, or 0 if a row with one of the
    `final` flags counted.
    """
    n = powers.shape[0] - 1
    rows, touched = place.shape[0], np.float64(0.0)
    for i in range(rows):
        # A loop too simple to wait in: it fetches a block's memory; the one below would miss row by row.
        if i % BLOCK == 0:
            for j in range(i, min(i + BLOCK, rows)):
                touched += reward[place[j]] + flags[place[j]]
        base = place[i] // length * length
        at, summed, steps, lives = place[i], np.float64(0.0), 0, True
        while steps < n:
            flag = flags[at]
            if flag & CLOSING:
                break
            summed += powers[steps] * reward[at]
            steps += 1
            at += 1
            if at == base + length:
                at = base
            if flag & (TERMINATED | TRUNCATED):
                lives = not flag & final
                break
        total[i] = summed
        discount[i] = powers[steps] if lives else 0.0
        successor[i] = at
    return touched  # of no meaning, but what is returned is not optimised away


@compiled
def frame_stacks(place: Array, length: int, flags: Array, history: Array) -> None:
    """Fill `history` [B, stack], oldest first, with the rows whose frames make up the stacks at `place`."""
    rows, stack = history.shape
    for i in range(rows):
        at = place[i]
        first = at // length * length
        for back in range(stack):
            history[i, stack - 1 - back] = at
            if not flags[at] & FRESH:
                at = at - 1 if at > first else at + length - 1
