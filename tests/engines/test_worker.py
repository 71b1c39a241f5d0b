"""Worker: waits send heartbeats and have a limit; a pause waits for undelivered messages."""

import pytest

from troop.core.program import Program
from troop.engines import worker as worker_module
from troop.engines.rpc.transport import HostSpec
from troop.engines.worker import DELIVERY_LIMIT_S, HEARTBEAT_S, Shutdown, Worker


class FakeClock:
    """Advances only when the test says so."""

    now = 100.0

    def monotonic(self):
        return self.now

    perf_counter = monotonic


class FakeTransport:
    """Records the verbs of control messages."""

    edges, replies, backlogged = (), None, False

    def __init__(self):
        self.verbs = []

    def bind(self, worker):
        pass

    def send_control(self, verb, *args, state=None):
        self.verbs.append(verb)


@pytest.fixture
def setup(monkeypatch):
    clock, transport = FakeClock(), FakeTransport()
    monkeypatch.setattr(worker_module, "time", clock)
    spec = HostSpec(
        "actor0", Program("actor0"), {}, (), seed=0, threads=1, mailbox_bytes=1, wait_limit_s=60.0
    )
    return Worker(spec, transport), transport, clock


def test_wait_longer_than_the_limit_raises_with_its_reason(setup):
    worker, _, clock = setup
    began = clock.now
    worker.check_wait("the reply of replay.sample()", began)
    clock.now += 61.0
    with pytest.raises(TimeoutError, match=r"waited 61 s for the reply of replay\.sample\(\)"):
        worker.check_wait("the reply of replay.sample()", began)


def test_blocked_host_sends_heartbeats(setup):
    worker, transport, clock = setup
    began = clock.now
    for _ in range(100):
        clock.now += 0.1
        worker.check_wait("space in the mailbox of replay", began)
    assert 8 <= transport.verbs.count("report") <= 10 / HEARTBEAT_S


def test_wait_ends_when_the_driver_stops_the_host(setup):
    worker, _, clock = setup
    worker.handle_command("stop", [])
    with pytest.raises(Shutdown):
        worker.check_wait("the reply of replay.sample()", clock.now)


@pytest.mark.parametrize("arrives", [True, False])
def test_pause_waits_for_undelivered_messages_up_to_a_limit(setup, arrives):
    worker, transport, clock = setup
    transport.has_undelivered, waits = True, []

    def receive(seconds):
        waits.append(seconds)
        clock.now += seconds
        transport.has_undelivered = not (arrives and len(waits) == 3)
        return False

    transport.receive = receive
    worker.handle_command("pause", [])
    clock.now += 10  # the rest of the current step
    for _ in range(1000):
        worker._handle_pending()  # the worker serves calls between two of these
        if not worker.pending:
            break
    assert transport.verbs[-1] == "paused" and worker.paused
    assert len(waits) == 3 if arrives else sum(waits) == pytest.approx(DELIVERY_LIMIT_S, abs=0.02)
