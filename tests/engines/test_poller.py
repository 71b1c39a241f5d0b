"""Waiting: with open eyes where things come soon, asleep where they do not."""

import os
import select
import threading
import time

import pytest

from troop.engines.rpc import poller as watching
from troop.engines.rpc.poller import LATE, SOON, SpinPoller


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
def poller(pipe):
    made = SpinPoller()
    made.poll = Counting(select.poll())
    made.poll.register(pipe[0], select.POLLIN)
    return made


def test_what_is_there_is_found_and_what_is_not_is_waited_for(poller, pipe):
    assert poller.wait(0) == []
    began = time.perf_counter()
    assert poller.wait(20) == []
    assert time.perf_counter() - began > 0.015
    threading.Timer(0.01, os.write, (pipe[1], b"x")).start()
    assert poller.wait(5000) == [(pipe[0], select.POLLIN)]
    assert poller.wait(0) == [(pipe[0], select.POLLIN)], "it stays until it is read"


def test_it_looks_only_where_things_came_soon(poller, pipe, monkeypatch):
    clock = iter(range(10**9))
    monkeypatch.setattr(watching.time, "perf_counter", lambda: next(clock) * SOON / 10)
    poller.wait(1)
    assert (poller.poll.looks, poller.poll.sleeps) == (0, 1), "at first nothing is known"
    os.write(pipe[1], b"x")
    while poller.poll.looks == 0:
        poller.wait(1)
    assert poller.poll.sleeps > 5, "one that came soon is not yet a habit"
    os.read(pipe[0], 1)
    poller.poll.looks = poller.poll.sleeps = 0
    assert poller.wait(1) == []
    assert 5 <= poller.poll.looks <= 15 and poller.poll.sleeps == 1, (
        "in vain, for as long as SOON, then asleep"
    )


def test_long_waits_are_forgotten_as_fast_as_short_ones(poller, pipe, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(watching.time, "perf_counter", lambda: now[0])
    poller._usual = SOON / 10
    began_late = poller._usual + (LATE - poller._usual) / 8

    class Hour(Counting):
        def poll(self, milliseconds):
            now[0] += 3600 if milliseconds > 0 else SOON
            return super().poll(0)

    poller.poll = Hour(poller.poll.poll_)
    poller.wait(1000)
    assert poller._usual == pytest.approx(began_late)
