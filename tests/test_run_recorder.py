"""RunRecorder writes roles, bottleneck and restarts, and returns the checkpoint parts of a role."""

import dataclasses
import json
import os
import shutil
import signal

import pytest
import torch

from troop.api import make_experiment
from troop.cli.main import run as troop
from troop.core.engine import CheckpointSource, Counters, Result, Until
from troop.core.errors import SetupProblem
from troop.envs import EnvPool
from troop.logs.memory_growth import MemoryGrowth
from troop.logs.topology import group_name, groups
from troop.run_recorder import RunRecorder, describe
from troop.runs.directory import RunDirectory
from troop.runs.summary import Summary

SHARES = {"busy": 0.5, "waiting": 0.0, "blocked": 0.0, "idle": 0.5, "steps_per_s": 9.0, "queue": 0}


@pytest.fixture
def recorder(tmp_path):
    made = make_experiment("apex-dqn", "CartPole-v1")
    with (
        RunDirectory.create(tmp_path / "run") as directory,
        RunRecorder(made, made.program(), directory, None, True) as recorder,
    ):
        yield recorder


def roles(*names, **shares):
    return {f"role/{n}/{what}": value for n in names for what, value in (SHARES | shares).items()}


def rows(recorder):
    return [json.loads(text) for text in recorder.directory.metrics.read_text().splitlines()]


def state(value):
    return {"learner.algorithm": {"w": torch.full((2,), value)}, "learner2.algorithm": {}, "replay.rows": 7}


def test_restore_returns_the_parts_of_the_requested_nodes(recorder):
    assert isinstance(recorder, CheckpointSource) and recorder.restore(["learner"]) is None
    for i in range(2):
        recorder.save(Counters(env_steps=i), state(float(i)), last=False)
    parts = recorder.restore(["learner"])
    assert list(parts) == ["learner.algorithm"] and parts["learner.algorithm"]["w"].tolist() == [1.0, 1.0]
    assert set(recorder.restore(["replay", "learner2"])) == {"replay.rows", "learner2.algorithm"}
    assert recorder.restore(["weights"]) == {}


@pytest.mark.reliability("F1")
def test_restore_skips_a_damaged_checkpoint(recorder):
    notes = []
    recorder.console.note = notes.append
    for i in range(2):
        recorder.save(Counters(env_steps=i), state(float(i)), last=False)
    older, newer = sorted(recorder.directory.checkpoints.glob("ckpt-*"))
    next(newer.glob("learner*.safetensors")).write_bytes(b"")
    assert recorder.restore(["learner"])["learner.algorithm"]["w"].tolist() == [0.0, 0.0]
    assert len(notes) == 1 and newer.name in notes[0]
    next(older.glob("learner*.safetensors")).write_bytes(b"")
    with pytest.raises(SetupProblem):  # not a restart without any state
        recorder.restore(["learner"])


def test_roles_bottleneck_and_restarts_are_written(recorder):
    metrics = roles("actor0", "actor1", busy=0.2) | roles("learner", busy=0.98) | {"policy/lag": 3.0}
    recorder.log(Counters(10, 2, restarts=1, wall_s=1.0), metrics)
    row = rows(recorder)[-1]
    assert row["count/restarts"] == 1 and row["policy/lag"] == 3.0 and row["role/actor1/busy"] == 0.2
    assert row["bottleneck"].startswith("learner: busy 98%")
    recorder.log(Counters(10, 2, restarts=1, wall_s=2.0), {"loss/critic": 1.0})
    assert "role/actor1/busy" not in rows(recorder)[-1]


def test_topology_comes_from_the_program():
    made = make_experiment("pql", "Pendulum-v1")
    topology = describe(made.program())
    kinds = {node.name: node.kind for node in topology.nodes}
    assert kinds == {
        "policies": "serving", "critics": "serving", "observations": "storing", "policy": "learning",
        "transitions": "storing", "critic": "learning", "actor": "acting", "evaluator": "evaluating",
    }  # fmt: skip
    assert set(topology.node("actor").calls) == {"transitions", "observations", "policies"}
    targets = {ratio.name: ratio.target for ratio in topology.ratios}
    assert targets == {"beta_av": made.system.beta_av, "beta_pv": made.system.beta_pv}


@pytest.mark.parametrize(("recipe", "env", "order"), [
    ("dqn", "CartPole-v1", ["trainer", "evaluator"]),
    ("apex-dqn", "CartPole-v1", ["actor", "replay", "learner", "weights", "evaluator"]),
    ("gorila-dqn", "CartPole-v1", ["bundle", "server", "evaluator"]),
    ("pql", "Pendulum-v1", ["actor", "observations", "transitions", "policy", "critic", "policies", "critics",
                            "evaluator"]),
])  # fmt: skip
def test_panel_order_of_each_system_is_that_of_the_data_flow(recipe, env, order):
    program = make_experiment(recipe, env).program()
    found = groups(roles(*program.nodes), describe(program))
    assert [group_name(group.name) for group in found] == order


def test_last_panel_shows_the_roles_as_they_worked(recorder):
    shown = []
    recorder.console.show = shown.append
    working = roles("actor0", "actor1", busy=0.2) | roles("learner", busy=0.98)
    recorder.log(Counters(10, 2, wall_s=1.0), working)
    recorder.experiment = dataclasses.replace(recorder.experiment, env=EnvPool("Pong-v5"))
    recorder.log_evaluation(Counters(10, 2), {"eval/return_mean": 14.6})
    recorder.log(Counters(20, 4, restarts=2, wall_s=2.0), roles("actor0", "actor1", "learner", busy=0.0))
    recorder.record_end(Result("done", Counters(20, 4, restarts=2, wall_s=2.0), {}))
    assert [progress.bottleneck[:7] for progress in shown] == ["learner", "learner", "none: a", "learner"]
    assert shown[-1].human_normalized == 100.0 and shown[-1].counters["restarts"] == 2
    assert Summary.read(recorder.directory.path).restarts == 2


def test_evaluations_of_atari_games_are_recorded_in_percent_of_a_human(recorder):
    recorder.log_evaluation(Counters(10, 2), {"eval/return_mean": 14.6})
    assert "eval/human_normalized" not in rows(recorder)[-1]
    recorder.experiment = dataclasses.replace(recorder.experiment, env=EnvPool("Pong-v5"))
    for score, percent in ((14.6, 100.0), (-20.7, 0.0), (49.9, 200.0)):
        recorder.log_evaluation(Counters(10, 2), {"eval/return_mean": score})
        row = rows(recorder)[-1]
        assert row["eval/human_normalized"] == pytest.approx(percent) and row["eval/return_mean"] == score


def test_summary_of_a_failed_run_has_the_newest_counters(recorder):
    recorder.log(Counters(10, 2, restarts=1), {})
    recorder.save(Counters(12, 2, restarts=5), state(1.0), last=True)
    recorder.record_failure("actor0 died 6 times")
    summary = Summary.read(recorder.directory.path)
    assert (summary.status, summary.restarts, summary.env_steps) == ("failed", 5, 12)


def test_engine_without_role_metrics_has_no_bottleneck(recorder):
    shown = []
    recorder.console.show = shown.append
    recorder.log(Counters(10, 2, wall_s=1.0), {"replay/rows": 5, "replay/capacity": 10})
    assert "bottleneck" not in rows(recorder)[-1] and not shown[0].roles and shown[0].flow.rows == 5


def test_time_left_includes_the_evaluations_that_are_due(recorder):
    shown = []
    recorder.console.show = shown.append
    evaluation = dataclasses.replace(recorder.experiment.evaluation, seconds=20.0)
    until = Until(minutes=2.0)
    recorder.experiment = dataclasses.replace(recorder.experiment, evaluation=evaluation, until=until)
    recorder.log(Counters(10, 2, wall_s=10.0), {})
    assert shown[-1].seconds_left == 110
    recorder.log_evaluation(Counters(20, 4, wall_s=20.0, evaluation_s=7.0), {"eval/return_mean": 1.0})
    assert shown[-1].seconds_left == 100 + 5 * 7  # five evaluations are due in 100 s
    by_steps = dataclasses.replace(evaluation, env_steps=10)
    recorder.experiment = dataclasses.replace(
        recorder.experiment, evaluation=by_steps, until=Until(env_steps=60)
    )
    recorder.log(Counters(20, 4, wall_s=20.0, evaluation_s=7.0), {})
    assert shown[-1].seconds_left == 40 + 4 * 7
    recorder.log(Counters(60, 4, wall_s=60.0, evaluation_s=30.0), {})
    assert shown[-1].seconds_left == 0


def test_time_split_of_one_thread_is_shown_and_its_seconds_are_written(recorder):
    shown = []
    recorder.console.show = shown.append
    times = {"act_s": 1.0, "env_s": 2.0, "learn_s": 6.0}
    recorder.log(Counters(10, 2, wall_s=9.0, evaluation_s=1.0, **times), {})
    assert shown[-1].split == pytest.approx(
        {"act": 0.1, "env": 0.2, "learn": 0.6, "evaluate": 0.1, "other": 0.0}
    )
    assert shown[-1].bottleneck.startswith("learn: 60%")
    row = rows(recorder)[-1]
    assert row["bottleneck"].startswith("learn: 60%")
    assert [row[f"time/{name}"] for name in times] == [1.0, 2.0, 6.0]
    recorder.log(Counters(20, 4, wall_s=10.0, **times), roles("actor0", "learner"))
    assert shown[-1].split == {} and shown[-1].roles  # roles in several processes have their own shares


@pytest.mark.reliability("S6")
def test_memory_that_keeps_growing_is_noted_once_and_shown(recorder):
    notes, shown, now = [], [], [0.0]
    recorder.console.note, recorder.console.show = notes.append, shown.append
    recorder.memory_growth = MemoryGrowth(window_s=10.0, min_growth=100e6, clock=lambda: now[0])
    for second in range(80):
        now[0] = float(second)
        memory = {"role/trainer/memory_bytes": 1e9 + 4e6 * second, "role/replay/memory_bytes": 5e9}
        recorder.log(Counters(second, 2, wall_s=second + 1.0), memory)
    assert len(notes) == 1 and "the memory of trainer" in notes[0] and "--recreate-every" in notes[0]
    assert list(shown[-1].growing) == ["trainer"]
    row = rows(recorder)[-1]
    assert row["process/memory_bytes"] > 50e6 and row["process/cpu"] > 0


def test_restore_reads_only_the_requested_parts(recorder):
    recorder.save(Counters(env_steps=1), state(1.0) | {"replay.rows": {"x": torch.ones(9)}}, last=False)
    (newest,) = recorder.directory.checkpoints.glob("ckpt-*")
    next(newest.glob("replay*.safetensors")).unlink()
    assert recorder.restore(["learner"])["learner.algorithm"]["w"].tolist() == [1.0, 1.0]
    with pytest.raises(SetupProblem):
        recorder.restore(["replay"])


def test_the_first_faulty_transition_is_written_once_and_noted(recorder):
    notes = []
    recorder.console.note = notes.append
    for text in ("first", "second"):
        recorder.write_file("first_fault.json", text)
    recorder.write_file("../outside.json", "text")
    path = recorder.directory.path / "first_fault.json"
    assert path.read_text() == "first" and not (path.parents[1] / "outside.json").exists()
    assert notes == [f"an env returned NaN or infinity; the first such transition is in {path}"]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
@pytest.mark.reliability("T3")
def test_signal_requests_a_stop(name, recorder):
    assert not recorder.stop_requested()
    os.kill(os.getpid(), getattr(signal, name))
    assert recorder.stop_requested()


@pytest.mark.parametrize("change", ["rename", "remove"])
@pytest.mark.reliability("F5")
def test_a_directory_renamed_or_removed_during_the_run_can_be_resumed(tmp_path, change, monkeypatch):
    """The change happens after the first checkpoint; the run itself ends as if nothing had happened."""
    run, moved = tmp_path / "run", tmp_path / "moved"
    save = RunRecorder.save

    def save_and_change(self, *args):
        save(self, *args)
        if run.exists() and not moved.exists() and not (tmp_path / "done").exists():
            (tmp_path / "done").touch()
            run.rename(moved) if change == "rename" else shutil.rmtree(run)

    monkeypatch.setattr(RunRecorder, "save", save_and_change)
    command = ["td3", "--env", "toy:PointMass", "--envs", "2", "--no-compile", "--evaluation.episodes", "2"]
    assert troop(["train", *command, "--env-steps", "100", "--run", str(run)]) == 0
    final = moved if change == "rename" else run
    assert Summary.read(final).status == "done" and Summary.read(final).env_steps == 100
    assert (change == "remove") == run.exists()
    assert troop(["resume", str(final), "--env-steps", "200"]) == 0
    assert Summary.read(final).env_steps == 200
