"""Waiting: with open eyes where things come soon, asleep where they do not."""

import os
import select
import threading
import time

import pytest

from troop.engines.rpc import poller as watching
from troop.engines.rpc.poller import LATE, SOON, Lookout


@pytest.fixture
def pipe():
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


class Counting:
    """A poll that counts how it is asked."""

    def __init__(self, poll):
        self.poll_, self.looks, self.sleeps = poll, 0, 0

    def register(self, *args):
        self.poll_.register(*args)

    def poll(self, milliseconds):
        if milliseconds > 0:
            self.sleeps += 1
        else:
            self.looks += 1
        return self.poll_.poll(milliseconds)


@pytest.fixture
def lookout(pipe):
    made = Lookout()
    made.poll = Counting(select.poll())
    made.poll.register(pipe[0], select.POLLIN)
    return made


def test_what_is_there_is_found_and_what_is_not_is_waited_for(lookout, pipe):
    assert lookout.wait(0) == []
    began = time.perf_counter()
    assert lookout.wait(20) == []
    assert time.perf_counter() - began > 0.015
    threading.Timer(0.01, os.write, (pipe[1], b"x")).start()
    assert lookout.wait(5000) == [(pipe[0], select.POLLIN)]
    assert lookout.wait(0) == [(pipe[0], select.POLLIN)], "it stays until it is read"


def test_it_looks_only_where_things_came_soon(lookout, pipe, monkeypatch):
    clock = iter(range(10**9))
    monkeypatch.setattr(watching.time, "perf_counter", lambda: next(clock) * SOON / 10)
    lookout.wait(1)
    assert (lookout.poll.looks, lookout.poll.sleeps) == (0, 1), "at first nothing is known"
    os.write(pipe[1], b"x")
    while lookout.poll.looks == 0:
        lookout.wait(1)
    assert lookout.poll.sleeps > 5, "one that came soon is not yet a habit"
    os.read(pipe[0], 1)
    lookout.poll.looks = lookout.poll.sleeps = 0
    assert lookout.wait(1) == []
    assert 5 <= lookout.poll.looks <= 15 and lookout.poll.sleeps == 1, (
        "in vain, for as long as SOON, then asleep"
    )


def test_long_waits_are_forgotten_as_fast_as_short_ones(lookout, pipe, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(watching.time, "perf_counter", lambda: now[0])
    lookout._usual = SOON / 10
    began_late = lookout._usual + (LATE - lookout._usual) / 8

    class Hour(Counting):
        def poll(self, milliseconds):
            now[0] += 3600 if milliseconds > 0 else SOON
            return super().poll(0)

    lookout.poll = Hour(lookout.poll.poll_)
    lookout.wait(1000)
    assert lookout._usual == pytest.approx(began_late)
