"""Waiting has a name and an end, and whoever waits still gives signs of life."""

import pytest

from troop.core.program import Program
from troop.engines import worker
from troop.engines.rpc.transport import Start
from troop.engines.worker import LONG, SETTLING, Ended, Worker


class Clock:
    """Stands still until it is moved."""

    now = 100.0

    def monotonic(self):
        return self.now

    perf_counter = monotonic


class Post:
    """Keeps what the launcher is told."""

    edges, answers, stuffed = (), None, False

    def __init__(self):
        self.said = []

    def bind(self, worker):
        """Nobody to tell."""

    def say(self, what, *rest, state=None):
        self.said.append(what)


@pytest.fixture
def waiting(monkeypatch):
    clock, post = Clock(), Post()
    monkeypatch.setattr(worker, "time", clock)
    start = Start("actor0", Program("actor0"), {}, (), seed=0, threads=1, mailbox=1, patience=60.0)
    return Worker(start, post), post, clock


def test_a_wait_that_takes_too_long_is_named(waiting):
    made, _, clock = waiting
    began = clock.now
    made.waited("the answer of replay.sample()", began)
    clock.now += 61.0
    with pytest.raises(TimeoutError, match=r"waited 61 s for the answer of replay\.sample\(\)"):
        made.waited("the answer of replay.sample()", began)


def test_whoever_waits_says_now_and_then_that_it_lives(waiting):
    made, post, clock = waiting
    began = clock.now
    for _ in range(100):
        clock.now += 0.1
        made.waited("room in the mailbox of replay", began)
    assert 8 <= post.said.count("report") <= 10 / LONG


def test_a_wait_ends_when_the_launcher_wants_an_end(waiting):
    made, _, clock = waiting
    made.obey("end", [])
    with pytest.raises(Ended):
        made.waited("the answer of replay.sample()", clock.now)


@pytest.mark.parametrize("arrives", [True, False])
def test_a_pause_waits_for_what_was_told_but_not_for_ever(waiting, arrives):
    made, post, clock = waiting
    post.unsettled, looked = True, []

    def receive(seconds):
        looked.append(seconds)
        clock.now += seconds
        post.unsettled = not (arrives and len(looked) == 3)
        return False

    post.receive = receive
    made.obey("hold", [])
    clock.now += 10  # the step that was under way
    for _ in range(1000):
        made._boundary()  # between two of these it serves
        if not made.owed:
            break
    assert post.said[-1] == "held" and made.holding
    assert len(looked) == 3 if arrives else sum(looked) == pytest.approx(SETTLING, abs=0.02)
