"""How the dead are brought back: when, how often, with what; by a clock of the test's own."""

from types import SimpleNamespace

import pytest
from fault_roles import CheckpointSource, Learner, Teller

from troop.core.engine import Counters, Until
from troop.core.errors import TrainingFault
from troop.core.program import Program
from troop.engines import Processes, supervisor
from troop.engines.driver import Loop
from troop.engines.metrics import Tally
from troop.engines.processes.pool import members
from troop.engines.supervisor import LONGEST_PAUSE, WINDOW, Limits, OverBudget, Supervisor


class Crew:
    """Members that live and die as the test says, each spawn and restore written down."""

    def __init__(self, later=()):
        self.later = frozenset(later)
        program = Program("crew")
        keeper = program.add("keeper", CheckpointSource)
        program.add("learner", Learner, keeper)
        program.add("teller", Teller, keeper)
        self.members = members(program)
        self.spawned, self.begun, self.said, self.dead = [], [], [], []

    def spawn(self, member):
        member.process, member.ready = object(), False
        member.heard = member.spawned = supervisor.time.monotonic()
        self.spawned.append((member.name, member.spawned))
        restart_fresh = member.name == "teller"
        self.said.append((member, ("ready", True, not restart_fresh, True, [])))

    def wire(self, member):
        """Nothing to wire."""

    def wire_all(self):
        """Nothing to wire."""

    def begin(self, member, state, restored):
        self.begun.append((member.name, state, restored))

    def hear(self, seconds, hear):
        said, self.said = self.said, []
        for member, message in said:
            hear(member, message, [])
        dead, self.dead = self.dead, []
        return dead

    def stack(self, member, ask=False):
        return "where it hung" if ask else ""

    def bury(self, member):
        member.process, member.ready = None, False
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


def started(restarts=3, step_s=60.0, later=()):
    crew, notes, restored = Crew(later), [], []

    def restore(nodes):
        restored.append(nodes)
        return {f"{nodes[0]}.kept": [1, 2]}

    made = Supervisor(crew, Limits(restarts, step_s, 60.0), restore, notes.append)
    made.start(lambda member: None)
    return made, crew, notes, restored


def kill(made, crew, clock, name):
    """Let it die, then go on in small steps until it is back; the seconds that took."""
    crew.dead.append(made.members[name])
    died, before = clock.now, len(crew.spawned)
    while len(crew.spawned) == before:
        made.attend(0.05)
        clock.now += 0.05
    made.attend(0.05)
    return crew.spawned[-1][1] - died


def test_each_death_of_a_host_makes_it_pause_longer_up_to_a_bound(clock):
    made, crew, notes, _ = started(restarts=20)
    pauses = [kill(made, crew, clock, "teller") for _ in range(9)]
    doubled = [0.1 * 2**i for i in range(9)]
    assert pauses == pytest.approx([min(LONGEST_PAUSE, pause) for pause in doubled], abs=0.11)
    assert kill(made, crew, clock, "learner") == pytest.approx(0.1, abs=0.11)  # each has its own
    assert made.restarts == 10 and "teller died (killed by SIGKILL); restart 9 of 20" in notes


def test_more_deaths_than_the_budget_end_the_run_and_tell_of_the_first(clock):
    made, crew, _, _ = started(restarts=2)
    said = ("failed", "teller", "step()", "OSError", "no simulator", False, "Traceback of the first")
    crew.said.append((made.members["teller"], said))
    for _ in range(2):
        kill(made, crew, clock, "teller")
    with pytest.raises(OverBudget, match=r"teller died 3 times.*first time: OSError: no simulator") as end:
        kill(made, crew, clock, "teller")
    assert end.value.trace == "Traceback of the first" and end.value.exit_code == 4


def test_after_it_has_resigned_the_dead_stay_dead_and_nothing_is_raised(clock):
    made, crew, _, _ = started(restarts=0)
    with pytest.raises(OverBudget):
        kill(made, crew, clock, "teller")
    made.resign()
    crew.dead.append(made.members["learner"])
    for _ in range(100):
        clock.now += 0.1
        made.attend(0.05)
    assert not made.members["learner"].alive and len(crew.spawned) == 3


def test_deaths_of_long_ago_are_forgotten(clock):
    made, crew, _, _ = started(restarts=2)
    for _ in range(5):
        kill(made, crew, clock, "teller")
        clock.now += WINDOW / 2 + 1
        for member in made.members.values():
            member.heard = clock.now
    assert made.restarts == 5


def test_only_those_who_go_on_get_their_part_of_a_checkpoint(clock):
    made, crew, _, restored = started()
    for name in ("keeper", "teller", "learner"):
        kill(made, crew, clock, name)
    assert restored == [["keeper"], ["learner"]]  # nothing is read for an expendable role
    assert crew.begun[3:] == [
        ("keeper", {"keeper.kept": [1, 2]}, True),
        ("teller", None, True),
        ("learner", {"learner.kept": [1, 2]}, True),
    ]


def test_one_that_is_silent_for_too_long_is_told_of_with_its_stack(clock):
    made, _, notes, _ = started(step_s=60.0)
    clock.now += 59.0
    for name in ("keeper", "teller"):
        made.members[name].heard = clock.now
    made.attend(0.05)
    assert not notes
    clock.now += 2.0
    made.attend(0.05)
    assert "learner died, no sign of life for 60 s (in step() or a method)" in notes[0]
    assert "where it hung" in notes[0] and not made.members["learner"].alive


def test_one_that_is_never_ready_ends_the_run(clock):
    crew = Crew()
    made = Supervisor(crew, Limits(3, 10.0, 60.0), lambda nodes: None, lambda text: None)
    crew.hear = lambda seconds, hear: setattr(clock, "now", clock.now + 5.0) or []
    with pytest.raises(
        TrainingFault, match=r"could not be started: no sign of life for 60 s \(while being built"
    ):
        made.start(lambda member: None)
    assert clock.now == 1065.0


def test_a_run_begins_without_those_who_can_wait_and_they_join_it(clock):
    made, crew, _, _ = started(later=["teller"])
    teller = made.members["teller"]
    heard = []
    teller.say = lambda *message: heard.append(message)
    assert [name for name, _ in crew.spawned] == ["keeper", "learner", "teller"]
    assert made.members["learner"].ready and not teller.ready
    made.go()
    assert heard == []  # it is not there yet
    assert made.starting
    made.attend(0.05)
    assert not made.starting and teller.ready and heard == [("go",)]


def test_who_comes_later_and_dies_on_the_way_is_started_again_with_what_was_saved_of_it(clock):
    made, crew, _, restored = started(later=["teller"])
    crew.said.clear()
    made.go()
    assert kill(made, crew, clock, "teller") == pytest.approx(0.1, abs=0.11)
    assert restored == [["teller"]] and made.members["teller"].ready and made.unheard == set()


def test_who_does_not_start_at_first_ends_the_run(clock):
    crew = Crew()
    made = Supervisor(crew, Limits(3, 60.0, 60.0), lambda nodes: None, lambda text: None)
    crew.spawn = lambda member: (Crew.spawn(crew, member), crew.dead.append(member), crew.said.clear())
    with pytest.raises(TrainingFault, match="could not be started"):
        made.start(lambda member: None)


@pytest.mark.parametrize("resumed", [True, False])
def test_a_checkpoint_before_the_last_host_is_there_keeps_what_was_saved_of_it(clock, resumed):
    watch = SimpleNamespace(note=None, restore=lambda nodes: {f"{nodes[0]}.kept": 3})
    watch.log = watch.save = watch.evaluated = watch.stop_asked = None
    loop = Loop(Processes(), crew := Crew(["teller"]), Tally(Counters()), Until(env_steps=1), watch)
    loop.supervisor.start(lambda member: None)
    loop.resumed = resumed
    for member in crew.members.values():  # those that are there have nothing to save
        member.saves = False
    assert loop._state() == {"policy": {}, "rng": {}} | ({"teller.kept": 3} if resumed else {})
