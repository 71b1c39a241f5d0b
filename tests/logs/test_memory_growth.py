"""Memory of roles: what is measured, and when growth is reported."""

import mmap
from itertools import pairwise

import numpy as np
import pytest

from troop.logs.memory_growth import WINDOWS, MemoryGrowth
from troop.logs.process_usage import ProcessUsage, memory_bytes


def warnings_for(values, window=4, min_growth=100.0):
    """The lines (numbered) with a warning, for one value a second."""
    now = [0.0]
    monitor = MemoryGrowth(window_s=window, min_growth=min_growth, clock=lambda: now[0])
    found = []
    for second, value in enumerate(values):
        now[0] = float(second)
        found += [(second, text) for text in monitor.update({"role/actor/memory_bytes": value})]
    return found, monitor


@pytest.mark.reliability("S6")
def test_steady_growth_is_reported_and_again_after_it_doubled():
    found, monitor = warnings_for([1000 + 10 * second for second in range(200)])
    seconds = [second for second, _ in found]
    assert seconds[0] <= (WINDOWS + 2) * 4 and "actor" in found[0][1] and monitor.growing == {"actor"}
    growths = [10 * second for second in seconds]
    assert 3 <= len(growths) <= 5 and all(b >= 1.8 * a for a, b in pairwise(growths))


@pytest.mark.parametrize("values", [
    [1000.0] * 200,
    [1000 + min(second, 10) * 100 for second in range(200)],  # grows while the run starts, then stops
    [1000 + 500 * (second % 5 == 0) for second in range(200)],  # peaks, as of evaluations
    [1000 + 10 * (second % 13) for second in range(200)],  # grows and is freed again
    [1e6 + 10 * second for second in range(200)],  # less than a tenth
    [0] * 200,  # the system does not tell
], ids=["constant", "start", "peaks", "sawtooth", "slow", "unknown"])  # fmt: skip
def test_memory_that_does_not_keep_growing_is_not_reported(values):
    found, monitor = warnings_for(values)

    assert not found and not monitor.growing


def test_growth_that_ends_is_no_longer_shown():
    found, monitor = warnings_for([1000 + 10 * min(second, 60) for second in range(120)])
    assert found and not monitor.growing


def test_memory_of_this_process_includes_what_it_touches():
    before = memory_bytes()
    block = mmap.mmap(-1, 50_000_000)  # not from the heap, which may have free memory
    np.frombuffer(block, np.uint8)[:] = 1
    assert memory_bytes() - before >= 40_000_000


def test_cpu_is_the_number_of_cores_in_use():
    usage = ProcessUsage()
    while usage.read()["cpu"] < 0.1:  # a busy loop uses up to one core, however loaded the machine is
        pass
