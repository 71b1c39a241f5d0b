"""Supervisor: when, how often and with which state dead hosts are restarted, with a fake clock and pool."""

from types import SimpleNamespace

import pytest
from fault_roles import CountingLearner, NumberSender, NumberStore

from troop.core.engine import Counters, Until
from troop.core.errors import TrainingFault
from troop.core.program import Program
from troop.engines import Processes
from troop.engines import supervisor as supervisor_module
from troop.engines.driver import Driver
from troop.engines.pool import host_handles
from troop.engines.progress import RunProgress
from troop.engines.supervisor import (
    MAX_RESTART_DELAY_S,
    RESTART_WINDOW_S,
    Limits,
    RestartBudgetExceeded,
    Supervisor,
)


class FakePool:
    """Records spawns and starts; hosts become ready at the next poll and die as the test says."""

    rendezvous = None

    def __init__(self, deferred=()):
        self.deferred = frozenset(deferred)
        program = Program("fake")
        store = program.add("store", NumberStore)
        program.add("learner", CountingLearner, store)
        program.add("sender", NumberSender, store)
        self.hosts = host_handles(program)
        self.spawned, self.started, self.messages, self.dead = [], [], [], []

    def spawn(self, host):
        host.control, host.ready = SimpleNamespace(send=lambda *_: None), False
        host.last_message = host.spawned = supervisor_module.time.monotonic()
        self.spawned.append((host.name, host.spawned))
        restores_state = host.name != "sender"
        self.messages.append((host, ("ready", True, restores_state, True, [])))

    def connect(self, host):
        pass

    def connect_all(self):
        pass

    def start(self, host, state, restored):
        self.started.append((host.name, state, restored))

    def poll(self, seconds, on_control):
        messages, self.messages = self.messages, []
        for host, message in messages:
            on_control(host, message, [])
        dead, self.dead = self.dead, []
        return dead

    def stack_trace(self, host, request=False):
        return "where it hung" if request else ""

    def reap(self, host):
        host.control, host.ready = None, False
        return "killed by SIGKILL"


class FakeClock:
    """Advances only when the test says so."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    fake = FakeClock()
    monkeypatch.setattr(supervisor_module, "time", fake)
    return fake


def started_supervisor(restarts=3, step_s=60.0, deferred=()):
    pool, notes, restored = FakePool(deferred), [], []

    def restore(nodes):
        restored.append(nodes)
        return {f"{nodes[0]}.numbers": [1, 2]}

    supervisor = Supervisor(pool, Limits(restarts, step_s, 60.0), restore, notes.append)
    supervisor.start(lambda host: None)
    return supervisor, pool, notes, restored


def kill(supervisor, pool, clock, name):
    """Let a host die, then poll until it is restarted; return the seconds until its restart."""
    pool.dead.append(supervisor.hosts[name])
    died, spawns = clock.now, len(pool.spawned)
    while len(pool.spawned) == spawns:
        supervisor.poll(0.05)
        clock.now += 0.05
    supervisor.poll(0.05)
    return pool.spawned[-1][1] - died


@pytest.mark.reliability("K9")
def test_restart_delay_doubles_with_each_death_of_a_host_up_to_a_maximum(clock):
    supervisor, pool, notes, _ = started_supervisor(restarts=20)
    delays = [kill(supervisor, pool, clock, "sender") for _ in range(9)]
    doubled = [0.1 * 2**i for i in range(9)]
    assert delays == pytest.approx([min(MAX_RESTART_DELAY_S, delay) for delay in doubled], abs=0.11)
    assert kill(supervisor, pool, clock, "learner") == pytest.approx(0.1, abs=0.11)  # counted per host
    assert supervisor.restarts == 10 and "sender died (killed by SIGKILL); restart 9 of 20" in notes


@pytest.mark.reliability("K9")
def test_exceeded_restart_budget_ends_the_run_and_reports_the_first_death(clock):
    supervisor, pool, _, _ = started_supervisor(restarts=2)
    failure = ("failed", "sender", "step()", "OSError", "no simulator", False, "Traceback of the first")
    pool.messages.append((supervisor.hosts["sender"], failure))
    for _ in range(2):
        kill(supervisor, pool, clock, "sender")
    reason = r"sender died 3 times.*first time: OSError: no simulator"
    with pytest.raises(RestartBudgetExceeded, match=reason) as caught:
        kill(supervisor, pool, clock, "sender")
    assert caught.value.trace == "Traceback of the first" and caught.value.exit_code == 4


def test_after_stop_restarting_deaths_neither_raise_nor_cause_restarts(clock):
    supervisor, pool, _, _ = started_supervisor(restarts=0)
    with pytest.raises(RestartBudgetExceeded):
        kill(supervisor, pool, clock, "sender")
    supervisor.stop_restarting()
    pool.dead.append(supervisor.hosts["learner"])
    for _ in range(100):
        clock.now += 0.1
        supervisor.poll(0.05)
    assert not supervisor.hosts["learner"].alive and len(pool.spawned) == 3


def test_deaths_before_the_restart_window_do_not_count(clock):
    supervisor, pool, _, _ = started_supervisor(restarts=2)
    for _ in range(5):
        kill(supervisor, pool, clock, "sender")
        clock.now += RESTART_WINDOW_S / 2 + 1
        for host in supervisor.hosts.values():
            host.last_message = clock.now
    assert supervisor.restarts == 5


def test_only_hosts_that_restore_state_get_their_part_of_the_checkpoint(clock):
    supervisor, pool, _, restored = started_supervisor()
    for name in ("store", "sender", "learner"):
        kill(supervisor, pool, clock, name)
    assert restored == [["store"], ["learner"]]  # the sender is `restart_fresh`
    assert pool.started[3:] == [
        ("store", {"store.numbers": [1, 2]}, True),
        ("sender", None, True),
        ("learner", {"learner.numbers": [1, 2]}, True),
    ]


@pytest.mark.reliability("S1")
def test_host_without_heartbeat_is_reported_with_its_stack_trace(clock):
    supervisor, _, notes, _ = started_supervisor(step_s=60.0)
    clock.now += 59.0
    for name in ("store", "sender"):
        supervisor.hosts[name].last_message = clock.now
    supervisor.poll(0.05)
    assert not notes
    clock.now += 2.0
    supervisor.poll(0.05)
    assert "learner died, no heartbeat for 60 s (in step() or a method)" in notes[0]
    assert "where it hung" in notes[0] and not supervisor.hosts["learner"].alive


def test_host_that_is_not_ready_in_time_ends_the_run(clock):
    pool = FakePool()
    supervisor = Supervisor(pool, Limits(3, 10.0, 60.0), lambda nodes: None, lambda text: None)
    pool.poll = lambda seconds, on_control: setattr(clock, "now", clock.now + 5.0) or []
    with pytest.raises(
        TrainingFault, match=r"could not be started: no heartbeat for 60 s \(while being built"
    ):
        supervisor.start(lambda host: None)
    assert clock.now == 1065.0


def test_run_starts_without_deferred_hosts_and_they_are_resumed_when_ready(clock):
    supervisor, pool, _, _ = started_supervisor(deferred=["sender"])
    sender = supervisor.hosts["sender"]
    messages = []
    sender.send = lambda *message: messages.append(message)
    assert [name for name, _ in pool.spawned] == ["store", "learner", "sender"]
    assert supervisor.hosts["learner"].ready and not sender.ready
    supervisor.resume()
    assert messages == []  # the sender is not ready yet
    assert supervisor.starting
    supervisor.poll(0.05)
    assert not supervisor.starting and sender.ready and messages == [("resume", 0)]


def test_deferred_host_that_dies_while_starting_is_restarted_with_its_checkpointed_state(clock):
    supervisor, pool, _, restored = started_supervisor(deferred=["sender"])
    pool.messages.clear()
    supervisor.resume()
    assert kill(supervisor, pool, clock, "sender") == pytest.approx(0.1, abs=0.11)
    assert restored == [["sender"]]
    assert supervisor.hosts["sender"].ready and supervisor.never_ready == set()


def test_host_that_dies_before_the_run_has_started_ends_the_run(clock):
    pool = FakePool()
    supervisor = Supervisor(pool, Limits(3, 60.0, 60.0), lambda nodes: None, lambda text: None)
    pool.spawn = lambda host: (FakePool.spawn(pool, host), pool.dead.append(host), pool.messages.clear())
    with pytest.raises(TrainingFault, match="could not be started"):
        supervisor.start(lambda host: None)


@pytest.mark.parametrize("resumed", [True, False])
def test_checkpoint_of_a_resumed_run_keeps_the_old_state_of_hosts_that_are_still_starting(clock, resumed):
    observer = SimpleNamespace(note=None, restore=lambda nodes: {f"{nodes[0]}.sent": 3})
    observer.log = observer.save = observer.log_evaluation = observer.stop_requested = None
    pool = FakePool(["sender"])
    driver = Driver(Processes(), pool, RunProgress(Counters()), Until(env_steps=1), observer)
    driver.supervisor.start(lambda host: None)
    driver.resumed = resumed
    for host in pool.hosts.values():
        host.saves_state = False
    assert driver._state() == {"policy": {}, "rng": {}} | ({"sender.sent": 3} if resumed else {})
