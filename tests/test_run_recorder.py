"""What is recorded of a run: restarts, roles and bottleneck in its files, and parts to restore roles from."""

import dataclasses
import json
import os
import signal

import pytest
import torch

from troop.api import experiment
from troop.core.engine import CheckpointSource, Counters, Result
from troop.core.errors import SetupProblem
from troop.envs import EnvPool
from troop.run_recorder import RunRecorder
from troop.runs.directory import RunDirectory
from troop.runs.summary import Summary

SHARES = {"busy": 0.5, "waiting": 0.0, "blocked": 0.0, "idle": 0.5, "steps_per_s": 9.0, "queue": 0}


@pytest.fixture
def recording(tmp_path):
    made = experiment("dqn", "CartPole-v1")
    with (
        RunDirectory.create(tmp_path / "run") as directory,
        RunRecorder(made, directory, None, True) as found,
    ):
        yield found


def roles(*names, **shares):
    return {f"role/{n}/{what}": value for n in names for what, value in (SHARES | shares).items()}


def rows(recording):
    return [json.loads(text) for text in recording.directory.metrics.read_text().splitlines()]


def state(value):
    return {"learner.algorithm": {"w": torch.full((2,), value)}, "learner2.algorithm": {}, "replay.rows": 7}


def test_restore_gives_the_parts_of_the_nodes_asked_for(recording):
    assert isinstance(recording, CheckpointSource) and recording.restore(["learner"]) is None
    for i in range(2):
        recording.save(Counters(env_steps=i), state(float(i)), last=False)
    found = recording.restore(["learner"])
    assert list(found) == ["learner.algorithm"] and found["learner.algorithm"]["w"].tolist() == [1.0, 1.0]
    assert set(recording.restore(["replay", "learner2"])) == {"replay.rows", "learner2.algorithm"}
    assert recording.restore(["weights"]) == {}


def test_restore_passes_over_a_damaged_checkpoint(recording):
    said = []
    recording.console.note = said.append
    for i in range(2):
        recording.save(Counters(env_steps=i), state(float(i)), last=False)
    older, newer = sorted(recording.directory.checkpoints.glob("ckpt-*"))
    next(newer.glob("learner*.safetensors")).write_bytes(b"")
    assert recording.restore(["learner"])["learner.algorithm"]["w"].tolist() == [0.0, 0.0]
    assert len(said) == 1 and newer.name in said[0]
    next(older.glob("learner*.safetensors")).write_bytes(b"")
    with pytest.raises(SetupProblem):  # to go on from nothing would be worse
        recording.restore(["learner"])


def test_roles_bottleneck_and_restarts_are_written(recording):
    metrics = roles("actor0", "actor1", busy=0.2) | roles("learner", busy=0.98) | {"policy/lag": 3.0}
    recording.log(Counters(10, 2, restarts=1, wall_s=1.0), metrics)
    row = rows(recording)[-1]
    assert row["count/restarts"] == 1 and row["policy/lag"] == 3.0 and row["role/actor1/busy"] == 0.2
    assert row["bottleneck"].startswith("learner: busy 98%")
    recording.log(Counters(10, 2, restarts=1, wall_s=2.0), {"loss/critic": 1.0})
    assert "role/actor1/busy" not in rows(recording)[-1]


def test_the_panel_in_the_end_shows_roles_as_they_worked(recording):
    shown = []
    recording.console.show = shown.append
    working = roles("actor0", "actor1", busy=0.2) | roles("learner", busy=0.98)
    recording.log(Counters(10, 2, wall_s=1.0), working)
    recording.experiment = dataclasses.replace(recording.experiment, env=EnvPool("Pong-v5"))
    recording.evaluated(Counters(10, 2), {"eval/return_mean": 14.6})
    recording.log(Counters(20, 4, restarts=2, wall_s=2.0), roles("actor0", "actor1", "learner", busy=0.0))
    recording.ended(Result("done", Counters(20, 4, restarts=2, wall_s=2.0), {}))
    assert [progress.bottleneck[:7] for progress in shown] == ["learner", "learner", "none: a", "learner"]
    assert shown[-1].human_normalized == 100.0 and shown[-1].counters["restarts"] == 2
    assert Summary.read(recording.directory.path).restarts == 2


def test_evaluations_of_atari_games_are_recorded_in_percent_of_a_human(recording):
    recording.evaluated(Counters(10, 2), {"eval/return_mean": 14.6})
    assert "eval/human_normalized" not in rows(recording)[-1]
    recording.experiment = dataclasses.replace(recording.experiment, env=EnvPool("Pong-v5"))
    for score, percent in ((14.6, 100.0), (-20.7, 0.0), (49.9, 200.0)):
        recording.evaluated(Counters(10, 2), {"eval/return_mean": score})
        row = rows(recording)[-1]
        assert row["eval/human_normalized"] == pytest.approx(percent) and row["eval/return_mean"] == score


def test_a_failed_run_tells_of_its_last_restarts(recording):
    recording.log(Counters(10, 2, restarts=1), {})
    recording.save(Counters(12, 2, restarts=5), state(1.0), last=True)
    recording.failed("actor0 died 6 times")
    summary = Summary.read(recording.directory.path)
    assert (summary.status, summary.restarts, summary.env_steps) == ("failed", 5, 12)


def test_an_engine_that_tells_of_no_roles_has_no_bottleneck(recording):
    shown = []
    recording.console.show = shown.append
    recording.log(Counters(10, 2, wall_s=1.0), {"replay/rows": 5, "replay/capacity": 10})
    assert "bottleneck" not in rows(recording)[-1] and not shown[0].roles and shown[0].flow.rows == 5


def test_restore_reads_no_more_than_the_parts_asked_for(recording):
    recording.save(Counters(env_steps=1), state(1.0) | {"replay.rows": {"x": torch.ones(9)}}, last=False)
    (newest,) = recording.directory.checkpoints.glob("ckpt-*")
    next(newest.glob("replay*.safetensors")).unlink()
    assert recording.restore(["learner"])["learner.algorithm"]["w"].tolist() == [1.0, 1.0]
    with pytest.raises(SetupProblem):
        recording.restore(["replay"])


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_asks_for_an_end(name, recording):
    assert not recording.stop_requested()
    os.kill(os.getpid(), getattr(signal, name))
    assert recording.stop_requested()
