"""Every engine with the same toy programs: runs to the end, stops, saves, goes on, names the guilty."""

import pytest

from troop.core.engine import Saved, Until
from troop.core.program import Program, Schedule
from troop.engines import Inline

ENGINES = {"inline": Inline(threads=1, log_s=1e-9, checkpoint_s=1e9)}


class Counter:
    """Ten env steps a step."""

    def __init__(self, fails_at=None, notes=()):
        self.count, self.fails_at, self.notes, self.closed = 0, fails_at, list(notes), False

    def step(self):
        """One more."""
        self.count += 1
        if self.count == self.fails_at:
            raise ZeroDivisionError("the seventh step is broken")
        return {"count/env_steps": 10, "count/updates": 1, "loss": float(self.count)}

    def close(self):
        """Say that it was closed."""
        CLOSED.append(self.count)

    def state_dict(self):
        """The count."""
        return {"count": self.count}

    def load_state_dict(self, state):
        """Go on from there."""
        self.count = state["count"]


class Judge:
    """Evaluates a counter: its return is the count."""

    def __init__(self, judged):
        self.judged = judged

    def step(self):
        """What is there now."""
        return {"eval/return_mean": self.judged.count}


class Idle:
    """Never has anything to do."""

    def step(self):
        """Nothing."""


class Log:
    """A Watch that keeps everything and asks to stop after some rounds."""

    def __init__(self, rounds=None):
        self.left, self.logs, self.evaluations, self.saves, self.notes = rounds, [], [], [], []

    def log(self, counters, metrics):
        """Keep."""
        self.logs.append((counters, metrics))

    def evaluated(self, counters, metrics):
        """Keep."""
        self.evaluations.append((counters, metrics))

    def save(self, counters, state, last):
        """Keep."""
        self.saves.append((counters, state))

    def note(self, text):
        """Keep."""
        self.notes.append(text)

    def stop_asked(self):
        """After so many rounds."""
        if self.left is not None:
            self.left -= 1
        return self.left is not None and self.left < 0


CLOSED: list[int] = []


@pytest.fixture(params=ENGINES, ids=str)
def engine(request):
    CLOSED.clear()
    return ENGINES[request.param]


def judged(every=30):
    program = Program("judged")
    program.add("judge", Judge, program.add("counter", Counter))
    program.schedule("judge", Schedule(env_steps=every))
    return program


def alone(*args):
    program = Program("alone")
    program.add("counter", Counter, *args)
    return program


def test_a_program_runs_until_its_steps_are_done_and_is_saved(engine):
    log = Log()
    result = engine.run(judged(), Until(env_steps=95), 0, log)
    assert (result.status, result.counters.env_steps, result.counters.updates) == ("done", 100, 10)
    assert [m["eval/return_mean"] for _, m in log.evaluations] == [
        3,
        6,
        9,
        10,
    ]  # every 30 steps, and at the end
    assert result.evaluation == {"eval/return_mean": 10}
    assert log.saves[-1][1]["counter.count"] == 10 and CLOSED == [10]
    assert [m["loss"] for _, m in log.logs if "loss" in m] == [float(i) for i in range(1, 11)]


def test_a_target_ends_the_run_at_the_first_evaluation_that_reaches_it(engine):
    log = Log()
    result = engine.run(judged(), Until(env_steps=1000, target=5.5), 0, log)
    assert result.status == "done" and result.counters.env_steps == 60
    assert result.counters.target_reached_s is not None and len(log.evaluations) == 2


def test_a_stop_request_saves_and_says_stopped(engine):
    log = Log(rounds=4)
    result = engine.run(judged(), Until(env_steps=1000), 0, log)
    assert (result.status, result.counters.env_steps) == ("stopped", 40)
    assert log.saves[-1][1]["counter.count"] == 4 and CLOSED == [4]


def test_a_stopped_run_goes_on_to_the_same_end(engine):
    log = Log(rounds=4)
    engine.run(judged(), Until(env_steps=100), 0, log)
    resumed = Log()
    result = engine.run(judged(), Until(env_steps=100), 0, resumed, Saved(*log.saves[-1]))
    assert (result.counters.env_steps, result.counters.updates) == (100, 10)
    assert resumed.saves[-1][1]["counter.count"] == 10


def test_a_crash_in_a_step_surfaces_and_everything_is_closed(engine):
    with pytest.raises(ZeroDivisionError, match="the seventh step is broken"):
        engine.run(alone(7), Until(env_steps=1000), 0, Log())
    assert CLOSED == [7]


def test_roles_that_all_wait_are_a_bug_and_not_a_hang(engine):
    program = Program("idle")
    program.add("idle", Idle)
    with pytest.raises(RuntimeError, match="waits for another"):
        engine.run(program, Until(env_steps=10), 0, Log())


def test_what_roles_have_to_say_is_passed_on_once(engine):
    log = Log()
    engine.run(alone(None, ["dropped 3 rows"]), Until(env_steps=50), 0, log)
    assert log.notes == ["dropped 3 rows"]


def test_several_roles_step_in_turn(engine):
    program = Program("two")
    program.add("one", Counter)
    program.add("two", Counter)
    assert engine.run(program, Until(env_steps=100), 0, Log()).counters.updates == 10
    assert CLOSED == [5, 5]


def test_checkpoints_are_made_along_the_way():
    log = Log()
    Inline(threads=1, checkpoint_s=1e-9).run(alone(), Until(env_steps=50), 0, log)
    assert [state["counter.count"] for _, state in log.saves] == [0, 1, 2, 3, 4, 5, 5]
