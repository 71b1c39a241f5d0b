"""Conformance of engines: every engine runs, stops, checkpoints and resumes the same toy programs."""

import dataclasses
import os

import pytest
from toy_roles import (
    BlobSender,
    Consumer,
    Counter,
    CountEvaluator,
    Idle,
    Inference,
    NumberStore,
    PeerInspector,
    Producer,
    Runner,
)

from troop.core.engine import Checkpoint, Until
from troop.core.errors import TrainingFault
from troop.core.program import Program, Ref, Schedule
from troop.engines import Inline, Processes, Ray
from troop.engines.ray.cluster import ray_connection

ENGINES = {
    "inline": Inline(threads=1, log_s=1e-9, checkpoint_s=1e9),
    "processes": Processes(threads=1, log_s=1e-9, checkpoint_s=1e9, restarts=0, step_limit_s=20),
    "ray": Ray(threads=1, log_s=1e-9, checkpoint_s=1e9, restarts=0, step_limit_s=20),
}


class RecordingObserver:
    """Records everything, restores from its newest checkpoint and requests a stop at env step `stop_at`."""

    def __init__(self, stop_at=None):
        self.stop_at, self.steps = stop_at, 0
        self.logs, self.evaluations, self.saves, self.notes, self.last = [], [], [], [], {}

    def log(self, counters, metrics):
        self.logs.append((counters, metrics))
        self.last |= metrics
        self.steps = counters.env_steps

    def log_evaluation(self, counters, metrics):
        self.evaluations.append((counters, metrics))

    def save(self, counters, state, last):
        self.saves.append((counters, state))

    def restore(self, nodes):
        prefixes = tuple(f"{node}." for node in nodes)
        return {key: part for key, part in self.saves[-1][1].items() if key.startswith(prefixes)}

    def note(self, text):
        self.notes.append(text)

    def stop_requested(self):
        return self.stop_at is not None and self.steps >= self.stop_at


@pytest.fixture(scope="module")
def local_ray():
    """Start one Ray for all tests: starting it takes longer than each of them."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'trooprl[ray]'")
    with ray_connection("local", insecure=False, seconds=60):
        yield


@pytest.fixture(params=ENGINES, ids=str)
def engine(request):
    if request.param == "ray":
        request.getfixturevalue("local_ray")
    segments = set(os.listdir("/dev/shm"))
    yield ENGINES[request.param]
    assert set(os.listdir("/dev/shm")) <= segments


def evaluated_counter(every=30, **counter):
    program = Program("evaluated")
    program.add("evaluator", CountEvaluator, program.add("counter", Counter, **counter))
    program.schedule("evaluator", Schedule(env_steps=every))
    return program


def single_counter(**counter):
    program = Program("single")
    program.add("counter", Counter, **counter)
    return program


def producer_and_store(mode, **store):
    program = Program("production")
    program.add("producer", Producer, program.add("store", NumberStore, **store), mode)
    return program


def is_exact(engine):
    """Return whether the engine stops exactly at the requested step."""
    return isinstance(engine, Inline)


def expected_error(engine, kind):
    """Inline raises the error of the role; other engines raise a TrainingFault that names the role."""
    return kind if is_exact(engine) else TrainingFault


def test_program_runs_until_its_steps_are_done_and_is_saved(engine, tmp_path):
    observer, close_log = RecordingObserver(), tmp_path / "closed"
    result = engine.run(evaluated_counter(close_log=str(close_log)), Until(env_steps=95), 0, observer)
    steps, updates = result.counters.env_steps, result.counters.updates
    assert result.status == "done" and steps >= 100 and steps == 10 * updates
    assert result.evaluation == {"eval/return_mean": updates}
    assert observer.saves[0][1]["counter.count"] == 0  # the run can be resumed from its start
    assert observer.saves[-1][1]["counter.count"] == updates and close_log.read_text() == f"{updates}\n"
    if is_exact(engine):
        assert (steps, updates) == (100, 10)
        returns = [metrics["eval/return_mean"] for _, metrics in observer.evaluations]
        assert returns == [3, 6, 9, 10]  # every 30 env steps and at the end
        losses = [metrics["loss"] for _, metrics in observer.logs if "loss" in metrics]
        assert losses == [float(i) for i in range(1, 11)]


def test_target_ends_the_run_at_the_first_evaluation_that_reaches_it(engine):
    observer = RecordingObserver()
    result = engine.run(evaluated_counter(), Until(env_steps=10**9, target=5.5), 0, observer)
    assert result.status == "done" and result.counters.target_reached_s is not None
    assert [metrics["eval/return_mean"] >= 5.5 for _, metrics in observer.evaluations][-1:] == [True]
    if is_exact(engine):
        assert result.counters.env_steps == 60 and len(observer.evaluations) == 2


@pytest.mark.reliability("R2")
def test_stopped_run_is_saved_and_can_be_resumed(engine, tmp_path):
    observer, close_log = RecordingObserver(stop_at=40), tmp_path / "closed"
    result = engine.run(evaluated_counter(close_log=str(close_log)), Until(env_steps=10**9), 0, observer)
    stopped = result.counters
    assert result.status == "stopped" and stopped.env_steps >= 40
    assert observer.saves[-1][1]["counter.count"] == stopped.updates
    assert close_log.read_text() == f"{stopped.updates}\n"
    resumed, until = RecordingObserver(), Until(env_steps=stopped.env_steps + 60)
    result = engine.run(evaluated_counter(), until, 0, resumed, Checkpoint(*observer.saves[-1]))
    assert result.counters.env_steps == 10 * result.counters.updates >= until.env_steps
    assert resumed.saves[-1][1]["counter.count"] == result.counters.updates
    if is_exact(engine):
        assert result.counters.updates == 10


@pytest.mark.reliability("R4")
def test_checkpoint_of_one_engine_can_be_resumed_by_another():
    first, second = RecordingObserver(), RecordingObserver()
    inline, processes = ENGINES["inline"], ENGINES["processes"]
    inline.run(evaluated_counter(), Until(env_steps=100), 0, first)
    result = processes.run(evaluated_counter(), Until(env_steps=200), 0, second, Checkpoint(*first.saves[-1]))
    assert second.saves[-1][1]["counter.count"] == result.counters.updates >= 20
    stop_at_once, checkpoint = RecordingObserver(0), Checkpoint(*second.saves[-1])
    again = inline.run(evaluated_counter(), Until(env_steps=10**6), 0, stop_at_once, checkpoint)
    assert again.counters.updates == result.counters.updates


@pytest.mark.reliability("T5")
def test_error_in_a_step_is_raised_and_all_roles_are_closed(engine, tmp_path):
    close_log = tmp_path / "closed"
    program = single_counter(fails_at=7, close_log=str(close_log))
    error = expected_error(engine, ZeroDivisionError)
    with pytest.raises(error, match="the seventh step is broken") as caught:
        engine.run(program, Until(env_steps=10**9), 0, RecordingObserver())
    assert is_exact(engine) or ("counter died" in str(caught.value) and "in step()" in str(caught.value))
    assert close_log.read_text() == "7\n"


@pytest.mark.parametrize("mode, method", [("call", "check()"), ("send", "add()")])
def test_error_in_a_called_method_names_the_role_that_failed(engine, mode, method):
    program = producer_and_store(mode, fails_at=5)
    with pytest.raises(expected_error(engine, ValueError), match="number 5 is broken") as caught:
        engine.run(program, Until(env_steps=10**9), 0, RecordingObserver())
    assert is_exact(engine) or ("store died" in str(caught.value) and f"in {method}" in str(caught.value))


def test_deadlocked_roles_raise_an_error(engine):
    program = Program("idle")
    program.add("idle", Idle)
    if not is_exact(engine):
        engine = dataclasses.replace(engine, step_limit_s=2)
    with pytest.raises(RuntimeError, match="every role waits for another"):
        engine.run(program, Until(env_steps=10), 0, RecordingObserver())


def test_notes_of_roles_are_passed_on_once(engine):
    observer = RecordingObserver()
    engine.run(single_counter(notes=["dropped 3 rows"]), Until(env_steps=50), 0, observer)
    assert observer.notes == ["dropped 3 rows"]


def test_notes_made_during_the_run_are_passed_on_once(engine):
    observer = RecordingObserver()
    engine.run(single_counter(third_step_note="compiled"), Until(env_steps=50), 0, observer)
    assert observer.notes == ["compiled"]


def test_counts_of_several_roles_are_summed(engine):
    program = Program("two")
    program.add("one", Counter)
    program.add("two", Counter)
    observer = RecordingObserver()
    counters = engine.run(program, Until(env_steps=100), 0, observer).counters
    state = observer.saves[-1][1]
    assert counters.updates == state["one.count"] + state["two.count"] >= 10
    assert not is_exact(engine) or state["one.count"] == state["two.count"] == 5


def test_host_that_is_missing_in_the_checkpoint_starts_without_state():
    program, observer = Program("two"), RecordingObserver()
    program.add("one", Counter)
    program.add("two", Counter)
    engine = ENGINES["processes"]
    engine.run(program, Until(env_steps=100), 0, observer)
    counters, state = observer.saves[-1]
    partial = {key: part for key, part in state.items() if not key.startswith("two.")}
    partial["rng"] = {"one": state["rng"]["one"]} if "one" in state["rng"] else {}
    resumed, until = RecordingObserver(), Until(env_steps=counters.env_steps + 100)
    engine.run(program, until, 0, resumed, Checkpoint(counters, partial))
    assert resumed.saves[-1][1]["one.count"] > state["one.count"]
    assert 0 < resumed.saves[-1][1]["two.count"] < 10**6


@pytest.mark.reliability("R2")
def test_no_message_is_lost_and_the_states_of_a_checkpoint_are_consistent(engine):
    observer = RecordingObserver()
    result = engine.run(producer_and_store("both"), Until(env_steps=300), 0, observer)
    state = observer.saves[-1][1]
    assert state["store.numbers"] == list(range(1, result.counters.env_steps + 1))
    assert state["producer.sent"] == result.counters.env_steps >= 300


def test_prefetched_replies_arrive_in_order(engine):
    program = producer_and_store("send")
    program.add("consumer", Consumer, Ref("store"))
    result = engine.run(program, Until(env_steps=500), 0, RecordingObserver())
    assert result.counters.updates > result.counters.env_steps


def test_nodes_of_one_host_reference_each_other_directly_and_others_by_stub(engine):
    for same_host in (True, False):
        program, observer = Program("peers"), RecordingObserver()
        with program.host("here"):
            store = program.add("store", NumberStore)
            if same_host:
                program.add("inspector", PeerInspector, store)
        if not same_host:
            program.add("inspector", PeerInspector, store)
        engine.run(program, Until(env_steps=10), 0, observer)
        assert observer.last["same_host"] == float(same_host or is_exact(engine))


def test_batched_calls_return_each_caller_its_own_rows(engine):
    program, observer = Program("inference"), RecordingObserver()
    inference = program.add("inference", Inference)
    for i in range(3):
        program.add(f"runner/{i}", Runner, inference, 10 * i)
    result = engine.run(program, Until(env_steps=6000), 0, observer)
    assert result.counters.env_steps >= 6000
    # Each call has three rows, so there are never more calls than callers' requests.
    assert is_exact(engine) or observer.last["calls"] <= observer.last["rows"] / 3


def test_large_messages_arrive_complete(engine):
    program, observer = Program("blobs"), RecordingObserver()
    program.add("sender", BlobSender, program.add("store", NumberStore), 300_000)
    result = engine.run(program, Until(env_steps=50), 0, observer)
    numbers, sent = observer.saves[-1][1]["store.numbers"], result.counters.env_steps
    assert set(numbers) == {300_000}
    assert sent - (0 if is_exact(engine) else 2) <= len(numbers) <= sent  # the last ones may be in flight


@pytest.mark.reliability("R2")
def test_periodic_checkpoints_are_consistent_with_their_counters(engine):
    observer = RecordingObserver()
    frequent = dataclasses.replace(engine, checkpoint_s=1e-9)
    result = frequent.run(single_counter(), Until(env_steps=50), 0, observer)
    counts = [state["counter.count"] for _, state in observer.saves]
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == result.counters.updates
    assert all(counters.updates == state["counter.count"] for counters, state in observer.saves)
    assert not is_exact(engine) or counts == [0, 1, 2, 3, 4, 5, 5]
