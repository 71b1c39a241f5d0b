"""How the dead are brought back: when, how often, with what; by a clock of the test's own."""

from types import SimpleNamespace

import pytest
from fault_roles import CheckpointSource, Learner, Teller

from troop.core.engine import Counters, Until
from troop.core.errors import TrainingFault
from troop.core.program import Program
from troop.engines import Processes, supervisor
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
    """Members that live and die as the test says, each spawn and restore written down."""

    def __init__(self, deferred=()):
        self.deferred = frozenset(deferred)
        program = Program("crew")
        keeper = program.add("keeper", CheckpointSource)
        program.add("learner", Learner, keeper)
        program.add("teller", Teller, keeper)
        self.hosts = host_handles(program)
        self.spawned, self.started, self.said, self.dead = [], [], [], []

    def spawn(self, host):
        host.control, host.ready = SimpleNamespace(send=lambda *_: None), False
        host.last_message = host.spawned = supervisor.time.monotonic()
        self.spawned.append((host.name, host.spawned))
        restart_fresh = host.name == "teller"
        self.said.append((host, ("ready", True, not restart_fresh, True, [])))

    def connect(self, host):
        """Nothing to wire."""

    def connect_all(self):
        """Nothing to wire."""

    def start(self, host, state, restored):
        self.started.append((host.name, state, restored))

    def poll(self, seconds, poll):
        said, self.said = self.said, []
        for host, message in said:
            poll(host, message, [])
        dead, self.dead = self.dead, []
        return dead

    def stack_trace(self, host, request=False):
        return "where it hung" if request else ""

    def reap(self, host):
        host.control, host.ready = None, False
        return "killed by SIGKILL"


class Clock:
    """Stands still until it is moved."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(supervisor, "time", made)
    return made


def started(restarts=3, step_s=60.0, deferred=()):
    pool, notes, restored = FakePool(deferred), [], []

    def restore(nodes):
        restored.append(nodes)
        return {f"{nodes[0]}.kept": [1, 2]}

    made = Supervisor(pool, Limits(restarts, step_s, 60.0), restore, notes.append)
    made.start(lambda host: None)
    return made, pool, notes, restored


def kill(made, pool, clock, name):
    """Let it die, then go on in small steps until it is back; the seconds that took."""
    pool.dead.append(made.hosts[name])
    died, before = clock.now, len(pool.spawned)
    while len(pool.spawned) == before:
        made.poll(0.05)
        clock.now += 0.05
    made.poll(0.05)
    return pool.spawned[-1][1] - died


def test_each_death_of_a_host_makes_it_pause_longer_up_to_a_bound(clock):
    made, pool, notes, _ = started(restarts=20)
    pauses = [kill(made, pool, clock, "teller") for _ in range(9)]
    doubled = [0.1 * 2**i for i in range(9)]
    assert pauses == pytest.approx([min(MAX_RESTART_DELAY_S, pause) for pause in doubled], abs=0.11)
    assert kill(made, pool, clock, "learner") == pytest.approx(0.1, abs=0.11)  # each has its own
    assert made.restarts == 10 and "teller died (killed by SIGKILL); restart 9 of 20" in notes


def test_more_deaths_than_the_budget_end_the_run_and_tell_of_the_first(clock):
    made, pool, _, _ = started(restarts=2)
    said = ("failed", "teller", "step()", "OSError", "no simulator", False, "Traceback of the first")
    pool.said.append((made.hosts["teller"], said))
    for _ in range(2):
        kill(made, pool, clock, "teller")
    with pytest.raises(
        RestartBudgetExceeded, match=r"teller died 3 times.*first time: OSError: no simulator"
    ) as end:
        kill(made, pool, clock, "teller")
    assert end.value.trace == "Traceback of the first" and end.value.exit_code == 4


def test_after_it_has_resigned_the_dead_stay_dead_and_nothing_is_raised(clock):
    made, pool, _, _ = started(restarts=0)
    with pytest.raises(RestartBudgetExceeded):
        kill(made, pool, clock, "teller")
    made.stop_restarting()
    pool.dead.append(made.hosts["learner"])
    for _ in range(100):
        clock.now += 0.1
        made.poll(0.05)
    assert not made.hosts["learner"].alive and len(pool.spawned) == 3


def test_deaths_of_long_ago_are_forgotten(clock):
    made, pool, _, _ = started(restarts=2)
    for _ in range(5):
        kill(made, pool, clock, "teller")
        clock.now += RESTART_WINDOW_S / 2 + 1
        for host in made.hosts.values():
            host.last_message = clock.now
    assert made.restarts == 5


def test_only_those_who_go_on_get_their_part_of_a_checkpoint(clock):
    made, pool, _, restored = started()
    for name in ("keeper", "teller", "learner"):
        kill(made, pool, clock, name)
    assert restored == [["keeper"], ["learner"]]  # nothing is read for an expendable role
    assert pool.started[3:] == [
        ("keeper", {"keeper.kept": [1, 2]}, True),
        ("teller", None, True),
        ("learner", {"learner.kept": [1, 2]}, True),
    ]


def test_one_that_is_silent_for_too_long_is_told_of_with_its_stack(clock):
    made, _, notes, _ = started(step_s=60.0)
    clock.now += 59.0
    for name in ("keeper", "teller"):
        made.hosts[name].last_message = clock.now
    made.poll(0.05)
    assert not notes
    clock.now += 2.0
    made.poll(0.05)
    assert "learner died, no sign of life for 60 s (in step() or a method)" in notes[0]
    assert "where it hung" in notes[0] and not made.hosts["learner"].alive


def test_one_that_is_never_ready_ends_the_run(clock):
    pool = FakePool()
    made = Supervisor(pool, Limits(3, 10.0, 60.0), lambda nodes: None, lambda text: None)
    pool.poll = lambda seconds, poll: setattr(clock, "now", clock.now + 5.0) or []
    with pytest.raises(
        TrainingFault, match=r"could not be started: no sign of life for 60 s \(while being built"
    ):
        made.start(lambda host: None)
    assert clock.now == 1065.0


def test_a_run_begins_without_those_who_can_wait_and_they_join_it(clock):
    made, pool, _, _ = started(deferred=["teller"])
    teller = made.hosts["teller"]
    heard = []
    teller.send = lambda *message: heard.append(message)
    assert [name for name, _ in pool.spawned] == ["keeper", "learner", "teller"]
    assert made.hosts["learner"].ready and not teller.ready
    made.resume()
    assert heard == []  # it is not there yet
    assert made.starting
    made.poll(0.05)
    assert not made.starting and teller.ready and heard == [("resume",)]


def test_who_comes_later_and_dies_on_the_way_is_started_again_with_what_was_saved_of_it(clock):
    made, pool, _, restored = started(deferred=["teller"])
    pool.said.clear()
    made.resume()
    assert kill(made, pool, clock, "teller") == pytest.approx(0.1, abs=0.11)
    assert restored == [["teller"]] and made.hosts["teller"].ready and made.never_ready == set()


def test_who_does_not_start_at_first_ends_the_run(clock):
    pool = FakePool()
    made = Supervisor(pool, Limits(3, 60.0, 60.0), lambda nodes: None, lambda text: None)
    pool.spawn = lambda host: (FakePool.spawn(pool, host), pool.dead.append(host), pool.said.clear())
    with pytest.raises(TrainingFault, match="could not be started"):
        made.start(lambda host: None)


@pytest.mark.parametrize("resumed", [True, False])
def test_a_checkpoint_before_the_last_host_is_there_keeps_what_was_saved_of_it(clock, resumed):
    watch = SimpleNamespace(note=None, restore=lambda nodes: {f"{nodes[0]}.kept": 3})
    watch.log = watch.save = watch.evaluated = watch.stop_requested = None
    driver = Driver(
        Processes(), pool := FakePool(["teller"]), RunProgress(Counters()), Until(env_steps=1), watch
    )
    driver.supervisor.start(lambda host: None)
    driver.resumed = resumed
    for host in pool.hosts.values():  # those that are there have nothing to save
        host.saves_state = False
    assert driver._state() == {"policy": {}, "rng": {}} | ({"teller.kept": 3} if resumed else {})
