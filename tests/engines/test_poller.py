"""SpinPoller: spins where messages usually arrive soon, blocks where they do not."""

import os
import select
import threading
import time

import pytest

from troop.engines.rpc import poller as poller_module
from troop.engines.rpc.poller import SPIN_S, WAIT_CAP_S, SpinPoller


@pytest.fixture
def pipe():
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


class CountingPoll:
    """A select.poll that counts polls without and with a timeout."""

    def __init__(self, poll):
        self.wrapped, self.spins, self.blocks = poll, 0, 0

    def register(self, *args):
        self.wrapped.register(*args)

    def poll(self, milliseconds):
        if milliseconds > 0:
            self.blocks += 1
        else:
            self.spins += 1
        return self.wrapped.poll(milliseconds)


@pytest.fixture
def poller(pipe):
    spin_poller = SpinPoller()
    spin_poller.poll = CountingPoll(select.poll())
    spin_poller.poll.register(pipe[0], select.POLLIN)
    return spin_poller


def test_wait_returns_events_that_are_there_and_blocks_for_those_that_are_not(poller, pipe):
    assert poller.wait(0) == []
    began = time.perf_counter()
    assert poller.wait(20) == []
    assert time.perf_counter() - began > 0.015
    threading.Timer(0.01, os.write, (pipe[1], b"x")).start()
    assert poller.wait(5000) == [(pipe[0], select.POLLIN)]
    assert poller.wait(0) == [(pipe[0], select.POLLIN)], "the event stays until the data is read"


def test_poller_spins_only_after_several_short_waits(poller, pipe, monkeypatch):
    clock = iter(range(10**9))
    monkeypatch.setattr(poller_module.time, "perf_counter", lambda: next(clock) * SPIN_S / 10)
    poller.wait(1)
    assert (poller.poll.spins, poller.poll.blocks) == (0, 1), "the first wait blocks"
    os.write(pipe[1], b"x")
    while poller.poll.spins == 0:
        poller.wait(1)
    assert poller.poll.blocks > 5, "a single short wait does not start spinning"
    os.read(pipe[0], 1)
    poller.poll.spins = poller.poll.blocks = 0
    assert poller.wait(5) == []
    assert 5 <= poller.poll.spins <= 15 and poller.poll.blocks == 1, "spins for SPIN_S, then blocks"


def test_long_wait_changes_the_mean_no_more_than_the_cap(poller, pipe, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(poller_module.time, "perf_counter", lambda: now[0])
    poller._mean_wait_s = SPIN_S / 10
    expected = poller._mean_wait_s + (WAIT_CAP_S - poller._mean_wait_s) / 8

    class HourLongPoll(CountingPoll):
        def poll(self, milliseconds):
            now[0] += 3600 if milliseconds > 0 else SPIN_S
            return super().poll(0)

    poller.poll = HourLongPoll(poller.poll.wrapped)
    poller.wait(1000)
    assert poller._mean_wait_s == pytest.approx(expected)
