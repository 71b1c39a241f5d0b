"""CircularBuffer: how often batches are returned, which ones are dropped, and that nothing blocks."""

import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from troop.replay.circular_buffer import CircularBuffer


class Numbers:
    """Returns 0, 1, 2, ... at the calls that `arrivals` marks, None at all others and after its end."""

    def __init__(self, arrivals):
        self.arrivals, self.count = list(arrivals), 0

    def sample(self, rows):
        assert rows == 8
        if not self.arrivals or not self.arrivals.pop(0):
            return None
        self.count += 1
        return self.count - 1


def samples(arrivals, size, replay_times, calls, seed=0):
    buffer = CircularBuffer(Numbers(arrivals), size, replay_times, seed)
    return [buffer.sample(8) for _ in range(calls)], buffer


@settings(max_examples=200, deadline=None)
@given(st.lists(st.booleans(), max_size=60), st.integers(1, 6), st.integers(1, 5), st.integers(0, 3))
def test_returned_batches_are_among_the_newest_and_used_at_most_k_times(arrivals, size, replay_times, seed):
    """The obvious model: a list of batches, oldest first, and a count of uses for each."""
    got, buffer = samples(arrivals, size, replay_times, 100, seed)
    held, uses, number = [], collections.Counter(), 0
    for arrived, batch in zip(arrivals + [False] * (100 - len(arrivals)), got, strict=True):
        if arrived:
            held = [*held, number][-size:]
            number += 1
        assert (batch is None) == (not held)
        if batch is None:
            continue
        assert batch in held
        uses[batch] += 1
        if uses[batch] == replay_times:
            held.remove(batch)
    assert len(buffer) == len(held) and all(count <= replay_times for count in uses.values())


@pytest.mark.parametrize("size, replay_times", [(1, 1), (1, 3), (4, 1), (4, 2), (16, 20)])
def test_every_batch_of_a_slow_source_is_used_k_times(size, replay_times):
    arrivals = ([True] + [False] * replay_times) * 30
    got, buffer = samples(arrivals, size, replay_times, len(arrivals))
    assert collections.Counter(got) == dict.fromkeys(range(30), replay_times) | {None: 30}
    assert len(buffer) == 0


def test_the_oldest_batches_of_a_fast_source_are_dropped():
    got, buffer = samples([True] * 4000, 4, 20, 4000)
    assert len(buffer) == 4 and all(call - 3 <= batch <= call for call, batch in enumerate(got))
    uses = collections.Counter(got)
    # Returned with probability 1/4 in each of the four calls of its life: never with (3/4)^4.
    assert sum(number not in uses for number in range(4000)) / 4000 == pytest.approx(0.75**4, abs=0.02)


def test_each_batch_is_drawn_with_the_same_probability():
    got, _ = samples([True] * 4, 4, 10**6, 8004)
    counts = collections.Counter(got[4:])
    assert all(counts[number] / 8000 == pytest.approx(0.25, abs=0.02) for number in range(4))


def test_an_exhausted_buffer_is_empty_until_a_batch_arrives():
    got, _ = samples([True, False, False, False, True], 4, 2, 8)
    assert got == [0, 0, None, None, 1, 1, None, None]


def test_equal_seeds_draw_equal_batches():
    one, two, other = (samples([True] * 50, 4, 3, 50, seed)[0] for seed in (1, 1, 2))
    assert one == two != other
