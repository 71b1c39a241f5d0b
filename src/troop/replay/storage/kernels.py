"""Loops over rows, compiled by numba, for replays in host memory: each reads every row it needs once.

As a sequence of tensor operations the same work takes three times as long as one gather of the batch
(docs/explanation/results/benchmarks.md). `kernels_torch.py` has the same functions as tensor operations, for
replays on a GPU.
A slot is the index of a row in the storage: stream * length + position in the ring of the stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from troop.replay.storage.lazy_numba import njit_lazy

TERMINATED, TRUNCATED, CLOSING = 1, 2, 4  # bits of a row's flags
STACK_START = 8  # a frame stack starts here: earlier frames are copies of this one
MAX_TRIES = 32  # random draws before the search for a valid row becomes linear
BLOCK = 128  # rows that `n_step_returns` loads into the cache at a time

Array = np.ndarray[Any, Any]


@njit_lazy
def rehash(random: Any, attempt: Any) -> Any:  # noqa: ANN401 - numba int64
    """Map a random number below 2^62 to [0, 2^32): its upper half, or number `attempt` of SplitMix64.

    A retry needs a number that does not depend on the one that was rejected; otherwise some rows near closing
    rows are drawn more often than others.
    """
    if attempt == 0:
        return random >> 30
    state = np.uint64(random) + np.uint64(attempt) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((state ^ (state >> np.uint64(31))) >> np.uint64(32))


@njit_lazy
def _num_windows(written: Any, length: int, n: int, margin: int) -> Any:  # noqa: ANN401 - numba int64
    """Return the number of complete n-step windows of a stream."""
    stored = min(written, length)
    return max(stored - n - (margin if written > length else 0), 0)


@njit_lazy
def draw_slots(
    random: Array,
    shift: float,
    rows_written: Array,
    length: int,
    n: int,
    margin: int,
    flags: Array,
    slots: Array,
) -> int:
    """Fill `slots` with uniformly drawn transitions; return how many were not found (set to -1).

    Streams are chosen at equal steps through all complete windows, so that each gets its share to within
    one row; `shift` in [0, 1) offsets the steps. A window is complete if `n` rows follow its first row,
    which must be at least `margin` rows after the oldest row of a full ring.
    """
    streams = rows_written.shape[0]
    total = 0
    for s in range(streams):
        total += _num_windows(rows_written[s], length, n, margin)
    missing, s, rows = 0, -1, slots.shape[0]
    end, windows, base, oldest = 0, 0, -length, 0
    for i in range(rows):
        target = min(int((i + shift) * total / rows), total - 1)
        while end <= target:
            s += 1
            windows = _num_windows(rows_written[s], length, n, margin)
            end += windows
            base += length
            oldest = (rows_written[s] + margin) % length if rows_written[s] > length else 0
        slot, offset = np.int64(-1), np.int64(0)
        for attempt in range(MAX_TRIES):
            # Scales a number below 2^32 to [0, windows) with a product instead of a division.
            offset = (rehash(random[i], attempt) * windows) >> 32
            candidate = oldest + offset
            candidate = base + (candidate - length if candidate >= length else candidate)
            if not flags[candidate] & CLOSING:
                slot = candidate
                break
        if slot < 0:  # nearly all rows are closing rows: take the next one that is not
            for ahead in range(1, windows):
                candidate = base + (oldest + (offset + ahead) % windows) % length
                if not flags[candidate] & CLOSING:
                    slot = candidate
                    break
        slots[i] = slot
        missing += int(slot < 0)
    return missing


@njit_lazy
def n_step_returns(
    slots: Array,
    length: int,
    reward: Array,
    flags: Array,
    gamma_powers: Array,
    final: int,
    returns: Array,
    discount: Array,
    successor: Array,
) -> float:
    """Sum the rewards of the n-step windows that start at `slots`, up to the end of their episode.

    A row counts if no earlier row of the window ended the episode and it is not a closing row. `successor` is
    the slot after the last row that counts; `discount` is gamma^steps, or 0 if a row with one of the `final`
    flags counts.
    """
    n = gamma_powers.shape[0] - 1
    rows, touched = slots.shape[0], np.float64(0.0)
    for i in range(rows):
        # Loads the memory of a block with independent reads; the loop below would miss the cache row by row.
        if i % BLOCK == 0:
            for j in range(i, min(i + BLOCK, rows)):
                touched += reward[slots[j]] + flags[slots[j]]
        base = slots[i] // length * length
        slot, total, steps, bootstraps = slots[i], np.float64(0.0), 0, True
        while steps < n:
            flag = flags[slot]
            if flag & CLOSING:
                break
            total += gamma_powers[steps] * reward[slot]
            steps += 1
            slot += 1
            if slot == base + length:
                slot = base
            if flag & (TERMINATED | TRUNCATED):
                bootstraps = not flag & final
                break
        returns[i] = total
        discount[i] = gamma_powers[steps] if bootstraps else 0.0
        successor[i] = slot
    return touched  # returned only so that the compiler keeps the reads


@njit_lazy
def frame_stacks(slots: Array, length: int, flags: Array, stacks: Array) -> None:
    """Fill `stacks` [B, stack] with the slots of the frames that form the stacks at `slots`, oldest first."""
    rows, stack = stacks.shape
    for i in range(rows):
        slot = slots[i]
        base = slot // length * length
        for back in range(stack):
            stacks[i, stack - 1 - back] = slot
            if not flags[slot] & STACK_START:
                slot = slot - 1 if slot > base else slot + length - 1
