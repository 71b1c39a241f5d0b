"""When an AutoCompiler compiles the losses of an algorithm, with a fake clock and a fake compilation."""

import json

import pytest
import torch

from troop.core.algorithm import UpdateResult
from troop.core.batch import Trajectory, Transition
from troop.roles import auto_compile, cache_filler
from troop.roles.auto_compile import (
    MEASUREMENT_UPDATES,
    WARM_UP,
    AutoCompileConfig,
    AutoCompiler,
    trimmed_mean,
)
from troop.roles.cache_filler import CacheFiller, batch_like, describe_batch

WINDOW = WARM_UP + MEASUREMENT_UPDATES
BATCH = Transition({"obs": torch.zeros(2, 1)}, torch.zeros(2, 1), torch.zeros(2), torch.ones(2), {})


class FakeLearner:
    """Updates take `plain` or `fast` seconds of the fake time `now`; the first compiled one `stall` more."""

    def __init__(self, plain=0.008, fast=0.006, stall=7.0):
        self.plain, self.fast, self.stall = plain, fast, stall
        self.now, self.compiled, self.compile_error = 0.0, False, None
        self.switches = []

    def set_compiled(self, compiled):
        self.compiled = compiled
        self.switches.append(compiled)

    def update(self, batch):
        self.now += self.fast if self.compiled else self.plain
        if self.compiled:
            self.now, self.stall = self.now + self.stall, 0.0
        return UpdateResult({})


class FakePreparation:
    def __init__(self, learner, seconds=30.0, succeeds=True):
        self.learner, self.end, self.succeeds, self.closed = learner, learner.now + seconds, succeeds, False

    def poll(self):
        return self.succeeds if self.learner.now >= self.end else None

    def close(self):
        self.closed = True


def compiler(learner, minutes=10.0, **preparation):
    config = AutoCompileConfig({}, minutes)
    return AutoCompiler(
        learner, config, [], lambda: learner.now, lambda *_: FakePreparation(learner, **preparation)
    )


def run(made, learner, updates, gap=0.001):
    for _ in range(updates):
        learner.now += gap
        made.update(BATCH)


@pytest.fixture(autouse=True)
def compiler_installed(monkeypatch):
    monkeypatch.setattr(auto_compile, "cpp_compiler", lambda: ("g++", True))


def test_losses_are_compiled_if_updates_take_most_of_a_long_run():
    learner = FakeLearner()
    made = compiler(learner)
    run(made, learner, WINDOW)
    assert made.phase == "prepare" and not learner.compiled
    run(made, learner, 30_000 // 9 + 1)  # the rest of 30 s of preparation, at 9 ms per update
    assert made.phase == "check" and learner.compiled
    run(made, learner, WINDOW)
    assert made.phase == "done" and made.compiled and learner.switches == [True]
    (note,) = made.notes
    assert "an update takes 6 ms instead of 8 ms" in note and "stopped the updates for 7 s" in note
    assert f"on from update {made.updates - WINDOW:,} on" in note
    assert made.gauges("policy") == {"policy/compiled": 1}


def test_plain_losses_stay_if_something_else_is_the_bottleneck():
    learner = FakeLearner()
    made = compiler(learner)
    run(made, learner, WINDOW, gap=0.008)
    assert made.phase == "done" and not learner.compiled
    assert "updates take 50% of the time" in made.notes[0]


def test_evaluations_and_checkpoints_between_updates_are_not_training_time():
    learner = FakeLearner()
    made = compiler(learner)
    run(made, learner, WINDOW - 2)
    run(made, learner, 2, gap=500.0)
    assert made.phase == "prepare"
    assert made.seconds == pytest.approx(0.008 * WINDOW + 0.001 * (WINDOW - 3))  # no gap before the first


@pytest.mark.parametrize("minutes, phase", [(1.5, "done"), (2.5, "prepare"), (None, "prepare")])
def test_the_rest_of_the_run_has_to_be_long_enough(minutes, phase):
    learner = FakeLearner()
    made = compiler(learner, minutes)
    run(made, learner, WINDOW)
    assert made.phase == phase
    assert not made.notes if phase == "prepare" else "too short" in made.notes[0]


def test_gain_of_the_rest_must_exceed_the_stop():
    made = compiler(FakeLearner(), minutes=1.0)
    made._gain = 1.25  # 60 s of plain updates are 48 s of compiled ones: a stop of 12 s is even
    assert made._pays(11.9) and not made._pays(12.1)
    assert made._pays(5.9, delay=30.0) and not made._pays(6.1, delay=30.0)


def test_plain_losses_are_used_again_if_compiled_ones_are_not_faster():
    learner = FakeLearner(fast=0.0079)
    made = compiler(learner, seconds=0.0)
    run(made, learner, 2 * WINDOW + 1)
    assert made.phase == "done" and learner.switches == [True, False] and not made.compiled
    assert "off" in made.notes[0] and "7.9 ms instead of 8 ms" in made.notes[0]


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setattr(auto_compile, "cpp_compiler", lambda: ("c++-17", False))
    learner = FakeLearner()
    made = compiler(learner)
    run(made, learner, WINDOW)
    assert made.phase == "done" and "c++-17 is not installed" in made.notes[0]


@pytest.mark.parametrize("minutes, compiled", [(3.0, False), (10.0, True)])
def test_after_a_failed_preparation_the_learner_compiles_itself_if_that_pays(minutes, compiled):
    learner = FakeLearner()
    made = compiler(learner, minutes, seconds=30.0, succeeds=False)
    run(made, learner, WINDOW + 30_000 // 9 + 1)
    assert learner.compiled is compiled


def test_an_algorithm_that_cannot_be_sent_to_another_process_is_compiled_here():
    def refuse(*_):
        raise TypeError("not JSON")

    learner = FakeLearner()
    made = AutoCompiler(learner, AutoCompileConfig({}, None), [], lambda: learner.now, refuse)
    run(made, learner, WINDOW)
    assert made.phase == "check" and learner.compiled


def test_a_failed_compilation_is_reported():
    learner = FakeLearner()
    made = compiler(learner, seconds=0.0)
    run(made, learner, WINDOW + 1)
    learner.compile_error = "CppCompileError: no space left"
    run(made, learner, WINDOW)
    assert "no space left" in made.notes[0] and not learner.compiled and made.phase == "done"


def test_the_decision_is_restored_and_not_made_again():
    learner = FakeLearner(stall=0.0)
    made = compiler(learner, seconds=0.0)
    undecided = made.state_dict()
    run(made, learner, 2 * WINDOW + 1)
    state = made.state_dict()
    assert state["decision"] == "on" and state["updates"] == 2 * WINDOW + 1

    resumed = FakeLearner(stall=0.0)
    again = compiler(resumed)
    again.load_state_dict(state)
    assert resumed.compiled and again.phase == "done" and again.state_dict() == state

    first = compiler(FakeLearner())
    first.load_state_dict(undecided)
    assert first.phase == "measure"

    off = AutoCompiler(FakeLearner(), None, [])  # resumed with --no-compile
    off.load_state_dict(state)
    assert not off.algorithm.compiled


def test_a_preparation_that_takes_too_long_is_ended():
    learner = FakeLearner(plain=1.0)
    made = compiler(learner, minutes=None, seconds=1e9)
    run(made, learner, WINDOW)
    preparation = made._preparation
    run(made, learner, 599)
    assert made.phase == "prepare"
    run(made, learner, 2)
    assert made.phase == "done" and preparation.closed and "10 minutes" in made.notes[0]


def test_without_a_config_the_clock_is_not_read():
    learner = FakeLearner()
    made = AutoCompiler(learner, None, [], clock=lambda: 1 / 0)
    run(made, learner, 2 * WINDOW)
    assert not learner.switches and not made.notes and made.gauges("policy") == {}


def test_closing_ends_the_preparation():
    learner = FakeLearner()
    made = compiler(learner)
    run(made, learner, WINDOW)
    preparation = made._preparation
    made.close()
    assert preparation.closed


def test_trimmed_mean_drops_the_largest_values():
    assert trimmed_mean([2.0, 4.0] * 50) == pytest.approx((50 * 2 + 48 * 4) / 98)
    assert trimmed_mean([1.0] * 98 + [1e9, 1e9]) == 1.0
    assert trimmed_mean([3.0]) == 3.0


@pytest.mark.parametrize("code", [0, 1])
def test_a_cache_filler_reports_how_its_process_ended(code, monkeypatch, tmp_path):
    (tmp_path / "fake_program.py").write_text(
        "import json, pathlib, sys; job = json.load(sys.stdin);"
        f"pathlib.Path('job.json').write_text(json.dumps(job)); sys.exit({code})"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cache_filler, "MODULE", "fake_program")
    filler = CacheFiller({"method": "algorithm"}, BATCH)
    filler._process.wait(60)
    assert filler.poll() is (code == 0)
    job = json.loads((tmp_path / "job.json").read_text())
    assert job["method"] == "algorithm" and job["threads"] == torch.get_num_threads()
    assert job["batch"] == describe_batch(BATCH)


def test_a_process_that_compiles_can_be_ended():
    filler = CacheFiller({}, BATCH)
    filler.close()
    assert filler.poll() is False


def test_batches_are_rebuilt_with_shapes_strides_and_types():
    packed = torch.ones(4, 6)
    batch = Transition(
        {"obs": packed[:, :3]},
        packed[:, 3:5],
        packed[:, 5],
        torch.ones(4),
        {"obs": packed[:, :3]},
        index=torch.ones(4, dtype=torch.int64),
    )
    rebuilt = batch_like(json.loads(json.dumps(describe_batch(batch))))
    assert describe_batch(rebuilt) == describe_batch(batch)
    assert rebuilt.obs["obs"].stride() == (6, 1) and rebuilt.index.dtype == torch.int64
    assert rebuilt.weight is None and rebuilt.reward.sum() == 0


def test_trajectories_are_rebuilt_with_valid_steps():
    flags, numbers = torch.zeros(3, 2, dtype=torch.bool), torch.ones(2, 2)
    obs = {"obs": torch.ones(3, 2, 4)}
    final, index = {"obs": torch.ones(0, 4)}, torch.empty(0, dtype=torch.int64)
    batch = Trajectory(obs, numbers, numbers, numbers, flags[:2], ~flags[:2], flags, final, index)
    rebuilt = batch_like(json.loads(json.dumps(describe_batch(batch))))
    assert describe_batch(rebuilt) == describe_batch(batch)
    assert isinstance(rebuilt, Trajectory) and rebuilt.valid.all()
