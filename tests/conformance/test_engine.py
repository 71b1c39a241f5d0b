"""Every engine with the same toy programs: runs to the end, stops, saves, goes on, names the guilty."""

import dataclasses
import os

import pytest
from toy_roles import (
    Consumer,
    Counter,
    Idle,
    Inference,
    Neighbour,
    OutlierFilter,
    Producer,
    ReplayBuffer,
    Runner,
    Shouter,
)

from troop.core.engine import Checkpoint, Until
from troop.core.errors import TrainingFault
from troop.core.program import Program, Schedule
from troop.engines import Inline, Processes, Ray
from troop.engines.ray.cluster import connected

ENGINES = {
    "inline": Inline(threads=1, log_s=1e-9, checkpoint_s=1e9),
    "processes": Processes(threads=1, log_s=1e-9, checkpoint_s=1e9, restarts=0, step_limit_s=20),
    "ray": Ray(threads=1, log_s=1e-9, checkpoint_s=1e9, restarts=0, step_limit_s=20),
}


class Log:
    """A Watch that keeps everything, gives back what it saved, and asks to stop after some env steps."""

    def __init__(self, stop_at=None):
        self.stop_at, self.steps = stop_at, 0
        self.logs, self.evaluations, self.saves, self.notes, self.last = [], [], [], [], {}

    def log(self, counters, metrics):
        """Keep."""
        self.logs.append((counters, metrics))
        self.last |= metrics
        self.steps = counters.env_steps

    def evaluated(self, counters, metrics):
        """Keep."""
        self.evaluations.append((counters, metrics))

    def save(self, counters, state, last):
        """Keep."""
        self.saves.append((counters, state))

    def restore(self, nodes):
        """Give back."""
        names = tuple(f"{node}." for node in nodes)
        return {key: part for key, part in self.saves[-1][1].items() if key.startswith(names)}

    def note(self, text):
        """Keep."""
        self.notes.append(text)

    def stop_requested(self):
        """After so many steps."""
        return self.stop_at is not None and self.steps >= self.stop_at


@pytest.fixture(scope="module")
def local_ray():
    """One Ray for all tests here: starting it takes longer than each of them."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'trooprl[ray]'")
    with connected("local", insecure=False, seconds=60):
        yield


@pytest.fixture(params=ENGINES, ids=str)
def engine(request):
    if request.param == "ray":
        request.getfixturevalue("local_ray")
    before = set(os.listdir("/dev/shm"))
    yield ENGINES[request.param]
    assert set(os.listdir("/dev/shm")) <= before


def judged(every=30, **counter):
    program = Program("judged")
    program.add("judge", OutlierFilter, program.add("counter", Counter, **counter))
    program.schedule("judge", Schedule(env_steps=every))
    return program


def alone(**counter):
    program = Program("alone")
    program.add("counter", Counter, **counter)
    return program


def produced(how, **store):
    program = Program("produced")
    program.add("producer", Producer, program.add("store", ReplayBuffer, **store), how)
    return program


def exact(engine):
    """Whether nothing happens beyond what was asked for."""
    return isinstance(engine, Inline)


def failing(engine, kind):
    """The guilty role's own error inline; elsewhere one that names it."""
    return kind if exact(engine) else TrainingFault


def test_a_program_runs_until_its_steps_are_done_and_is_saved(engine, tmp_path):
    log, closed = Log(), tmp_path / "closed"
    result = engine.run(judged(closed=str(closed)), Until(env_steps=95), 0, log)
    steps, updates = result.counters.env_steps, result.counters.updates
    assert result.status == "done" and steps >= 100 and steps == 10 * updates
    assert result.evaluation == {"eval/return_mean": updates}
    assert log.saves[0][1]["counter.count"] == 0  # there is something to resume from the start
    assert log.saves[-1][1]["counter.count"] == updates and closed.read_text() == f"{updates}\n"
    if exact(engine):
        assert (steps, updates) == (100, 10)
        assert [m["eval/return_mean"] for _, m in log.evaluations] == [
            3,
            6,
            9,
            10,
        ]  # every 30, and at the end
        assert [m["loss"] for _, m in log.logs if "loss" in m] == [float(i) for i in range(1, 11)]


def test_a_target_ends_the_run_at_the_first_evaluation_that_reaches_it(engine):
    log = Log()
    result = engine.run(judged(), Until(env_steps=10**9, target=5.5), 0, log)
    assert result.status == "done" and result.counters.target_reached_s is not None
    assert [m["eval/return_mean"] >= 5.5 for _, m in log.evaluations][-1:] == [True]
    if exact(engine):
        assert result.counters.env_steps == 60 and len(log.evaluations) == 2


def test_a_stop_request_saves_and_the_run_goes_on_from_there(engine, tmp_path):
    log, closed = Log(stop_at=40), tmp_path / "closed"
    result = engine.run(judged(closed=str(closed)), Until(env_steps=10**9), 0, log)
    stopped = result.counters
    assert result.status == "stopped" and stopped.env_steps >= 40
    assert log.saves[-1][1]["counter.count"] == stopped.updates
    assert closed.read_text() == f"{stopped.updates}\n"
    resumed, more = Log(), stopped.env_steps + 60
    result = engine.run(judged(), Until(env_steps=more), 0, resumed, Checkpoint(*log.saves[-1]))
    assert result.counters.env_steps == 10 * result.counters.updates >= more
    assert resumed.saves[-1][1]["counter.count"] == result.counters.updates
    if exact(engine):
        assert result.counters.updates == 10


def test_what_one_engine_saved_another_takes_up():
    log = Log()
    ENGINES["inline"].run(judged(), Until(env_steps=100), 0, log)
    resumed = Log()
    result = ENGINES["processes"].run(judged(), Until(env_steps=200), 0, resumed, Checkpoint(*log.saves[-1]))
    assert resumed.saves[-1][1]["counter.count"] == result.counters.updates >= 20
    back = ENGINES["inline"].run(judged(), Until(env_steps=10**6), 0, Log(0), Checkpoint(*resumed.saves[-1]))
    assert back.counters.updates == result.counters.updates


def test_a_crash_in_a_step_surfaces_and_everything_is_closed(engine, tmp_path):
    closed = tmp_path / "closed"
    with pytest.raises(failing(engine, ZeroDivisionError), match="the seventh step is broken") as caught:
        engine.run(alone(fails_at=7, closed=str(closed)), Until(env_steps=10**9), 0, Log())
    assert exact(engine) or ("counter died" in str(caught.value) and "in step()" in str(caught.value))
    assert closed.read_text() == "7\n"


@pytest.mark.parametrize("how, method", [("call", "check()"), ("tell", "add()")])
def test_a_crash_in_a_called_or_told_method_names_the_role_that_failed(engine, how, method):
    with pytest.raises(failing(engine, ValueError), match="number 5 is broken") as caught:
        engine.run(produced(how, fails_at=5), Until(env_steps=10**9), 0, Log())
    assert exact(engine) or ("store died" in str(caught.value) and f"in {method}" in str(caught.value))


def test_roles_that_all_wait_are_a_bug_and_not_a_hang(engine):
    program = Program("idle")
    program.add("idle", Idle)
    if not exact(engine):
        engine = dataclasses.replace(engine, step_limit_s=2)
    with pytest.raises(RuntimeError, match="waits for another"):
        engine.run(program, Until(env_steps=10), 0, Log())


def test_what_roles_have_to_say_is_passed_on_once(engine):
    log = Log()
    engine.run(alone(notes=["dropped 3 rows"]), Until(env_steps=50), 0, log)
    assert log.notes == ["dropped 3 rows"]


def test_several_roles_step_and_are_counted_together(engine):
    program = Program("two")
    program.add("one", Counter)
    program.add("two", Counter)
    log = Log()
    counters = engine.run(program, Until(env_steps=100), 0, log).counters
    state = log.saves[-1][1]
    assert counters.updates == state["one.count"] + state["two.count"] >= 10
    assert not exact(engine) or state["one.count"] == state["two.count"] == 5


def test_a_host_that_was_not_there_yet_when_a_checkpoint_was_made_begins_anew():
    program, log = Program("two"), Log()
    program.add("one", Counter)
    program.add("two", Counter)
    engine = ENGINES["processes"]
    engine.run(program, Until(env_steps=100), 0, log)
    counters, state = log.saves[-1]
    early = {key: part for key, part in state.items() if not key.startswith("two.")}
    early["rng"] = {"one": state["rng"]["one"]} if "one" in state["rng"] else {}
    call_async = Log()
    engine.run(program, Until(env_steps=counters.env_steps + 100), 0, call_async, Checkpoint(counters, early))
    assert call_async.saves[-1][1]["one.count"] > state["one.count"]
    assert 0 < call_async.saves[-1][1]["two.count"] < 10**6


def test_nothing_told_is_lost_and_the_checkpoint_fits_together(engine):
    log = Log()
    result = engine.run(produced("both"), Until(env_steps=300), 0, log)
    state = log.saves[-1][1]
    assert state["store.numbers"] == list(range(1, result.counters.env_steps + 1))
    assert state["producer.sent"] == result.counters.env_steps >= 300


def test_answers_asked_ahead_come_in_order(engine):
    program = produced("tell")
    program.add("consumer", Consumer, _reference("store"))
    result = engine.run(program, Until(env_steps=500), 0, Log())
    assert result.counters.updates > result.counters.env_steps


def test_nodes_of_one_host_hold_each_other_and_nodes_elsewhere_a_stub(engine):
    for together in (True, False):
        program, log = Program("near"), Log()
        with program.host("here"):
            store = program.add("store", ReplayBuffer)
            if together:
                program.add("neighbour", Neighbour, store)
        if not together:
            program.add("neighbour", Neighbour, store)
        engine.run(program, Until(env_steps=10), 0, log)
        assert log.last["same"] == float(together or exact(engine))


def test_batched_calls_answer_each_caller_its_own_rows(engine):
    program, log = Program("seed"), Log()
    inference = program.add("inference", Inference)
    for i in range(3):
        program.add(f"runner/{i}", Runner, inference, 10 * i)
    result = engine.run(program, Until(env_steps=6000), 0, log)
    assert result.counters.env_steps >= 6000
    assert exact(engine) or log.last["calls"] <= log.last["served"] / 3  # never more calls than callers


def test_big_letters_arrive_whole(engine):
    program, log = Program("loud"), Log()
    program.add("shouter", Shouter, program.add("store", ReplayBuffer), 300_000)
    result = engine.run(program, Until(env_steps=50), 0, log)
    numbers, sent = log.saves[-1][1]["store.numbers"], result.counters.env_steps
    assert set(numbers) == {300_000}
    assert sent - (0 if exact(engine) else 2) <= len(numbers) <= sent  # some may be under way in the end


def test_checkpoints_are_made_along_the_way(engine):
    log = Log()
    often = dataclasses.replace(engine, checkpoint_s=1e-9)
    result = often.run(alone(), Until(env_steps=50), 0, log)
    counts = [state["counter.count"] for _, state in log.saves]
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == result.counters.updates
    assert all(counters.updates == state["counter.count"] for counters, state in log.saves)
    assert not exact(engine) or counts == [0, 1, 2, 3, 4, 5, 5]


def _reference(name):
    from troop.core.program import Ref

    return Ref(name)
