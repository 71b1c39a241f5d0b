"""Waiting has a name and an end, and whoever waits still gives signs of life."""

import pytest

from troop.core.program import Program
from troop.engines import worker
from troop.engines.rpc.transport import HostSpec
from troop.engines.worker import DELIVERY_LIMIT_S, HEARTBEAT_S, Shutdown, Worker


class Clock:
    """Stands still until it is moved."""

    now = 100.0

    def monotonic(self):
        return self.now

    perf_counter = monotonic


class FakeTransport:
    """Keeps what the launcher is told."""

    edges, replies, backlogged = (), None, False

    def __init__(self):
        self.said = []

    def bind(self, worker):
        """Nobody to tell."""

    def send_control(self, what, *rest, state=None):
        self.said.append(what)


@pytest.fixture
def waiting(monkeypatch):
    clock, transport = Clock(), FakeTransport()
    monkeypatch.setattr(worker, "time", clock)
    start = HostSpec(
        "actor0", Program("actor0"), {}, (), seed=0, threads=1, mailbox_bytes=1, wait_limit_s=60.0
    )
    return Worker(start, transport), transport, clock


def test_a_wait_that_takes_too_long_is_named(waiting):
    made, _, clock = waiting
    began = clock.now
    made.check_wait("the answer of replay.sample()", began)
    clock.now += 61.0
    with pytest.raises(TimeoutError, match=r"waited 61 s for the answer of replay\.sample\(\)"):
        made.check_wait("the answer of replay.sample()", began)


def test_whoever_waits_says_now_and_then_that_it_lives(waiting):
    made, transport, clock = waiting
    began = clock.now
    for _ in range(100):
        clock.now += 0.1
        made.check_wait("room in the mailbox of replay", began)
    assert 8 <= transport.said.count("report") <= 10 / HEARTBEAT_S


def test_a_wait_ends_when_the_launcher_wants_an_end(waiting):
    made, _, clock = waiting
    made.handle_command("stop", [])
    with pytest.raises(Shutdown):
        made.check_wait("the answer of replay.sample()", clock.now)


@pytest.mark.parametrize("arrives", [True, False])
def test_a_pause_waits_for_what_was_told_but_not_for_ever(waiting, arrives):
    made, transport, clock = waiting
    transport.has_undelivered, looked = True, []

    def receive(seconds):
        looked.append(seconds)
        clock.now += seconds
        transport.has_undelivered = not (arrives and len(looked) == 3)
        return False

    transport.receive = receive
    made.handle_command("pause", [])
    clock.now += 10  # the step that was under way
    for _ in range(1000):
        made._boundary()  # between two of these it serves
        if not made.pending:
            break
    assert transport.said[-1] == "paused" and made.paused
    assert len(looked) == 3 if arrives else sum(looked) == pytest.approx(DELIVERY_LIMIT_S, abs=0.02)
