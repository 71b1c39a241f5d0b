"""A run of Ape-X in its directory with an env that fails in three ways: metrics, panel and summary."""

import io
import json

import pytest
from rich.console import Console as Terminal
from small_systems import DQN
from test_deaths import TRACED_APEX
from traced_env import TracedEnvConfig, check_replay_rows, failed_instances, steps_taken

from troop import experiment, run_recorder
from troop.core.engine import Until
from troop.core.errors import TrainingFault
from troop.core.system import Evaluation
from troop.engines import Processes
from troop.logs.panel import panel
from troop.run_recorder import RunRecorder
from troop.runs import curve
from troop.runs.checkpoint import load_newest
from troop.runs.summary import Summary

FAULTS = ("raise", "abort", "hang")
ROLE_METRICS = ("steps_per_s", "queue", "busy", "waiting", "blocked", "idle", "cpu", "memory_bytes")
METRICS = [f"role/actor1/{name}" for name in ROLE_METRICS] + [
    "policy/lag",
    "replay/rows",
    "replay/sample_age",
    "replay/sample_age_s",
    "replay/samples_per_insert",
    "replay/samples_per_insert_target",
    "rate/env_steps_per_s",
    "bottleneck",
    "count/restarts",
]
DERIVED_METRICS = {"bottleneck", "count/restarts", "replay/sample_age_s"}  # added when a line is written


def make_experiment(directory, faults, **engine):
    engine = {"threads": 1, "log_s": 0.25, "checkpoint_s": 1.0} | engine
    return experiment.Experiment(
        TracedEnvConfig(str(directory), faults=faults),
        DQN,
        TRACED_APEX,
        Processes(**engine),
        Until(minutes=3),
        Evaluation(episodes=2, env_steps=300, max_episode_steps=20),
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The run directory, the env directory and the progress shown; it stops when all metrics are logged."""
    directory, envs, shown = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("envs"), []

    class RecorderUntilComplete(RunRecorder):
        """Keeps the progress of each line; stops after three restarts when every metric was logged."""

        def log(self, counters, metrics):
            super().log(counters, metrics)
            shown.append(self._progress(counters, self.working_roles))

        def stop_requested(self):
            failed = failed_instances(envs)
            steps = [count for instance, count in steps_taken(envs).items() if instance not in failed]
            logged = set(self.latest_metrics) | DERIVED_METRICS
            restarts = shown[-1].counters["restarts"] if shown else 0
            groups = {(group.name, group.count) for group in shown[-1].roles} if shown else set()
            all_actors = ("actor", 2) in groups  # the failed ones are back
            return restarts >= 3 and max(steps, default=0) > 100 and all_actors and set(METRICS) <= logged

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_recorder, "RunRecorder", RecorderUntilComplete)
        patch.setattr(curve, "plot", lambda *_: None)  # drawing takes longer than the run
        # step_limit_s is the time until a hang is detected: long enough for hosts of a busy machine.
        run = make_experiment(envs, FAULTS, step_limit_s=4.0, restarts=50)
        result = run.run(directory / "run", quiet=True)
    assert result.status == "stopped"
    return directory / "run", envs, shown


@pytest.fixture(scope="module")
def lines(run):
    return [json.loads(line) for line in (run[0] / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.reliability("K10", "S1")
def test_env_that_raises_aborts_or_hangs_costs_its_actor_one_restart(run):
    directory, envs, _ = run
    failed = failed_instances(envs)
    assert [steps_taken(envs)[instance] for instance in failed] == [30, 30, 30]
    assert Summary.read(directory).restarts >= 3
    stored = check_replay_rows(load_newest(directory / "checkpoints").state["replay.replay"], envs=2)
    assert max(stored[failed[0]]) < 30
    assert max(len(steps) for instance, steps in stored.items() if instance not in failed) > 50


@pytest.mark.parametrize("name", METRICS)
def test_metric_is_written(name, lines):
    assert any(name in line for line in lines)


def test_metrics_are_consistent(lines):
    newest = {name: value for line in lines for name, value in line.items()}
    shares = [newest[f"role/actor1/{name}"] for name in ("busy", "waiting", "blocked", "idle")]
    assert sum(shares) == pytest.approx(1, abs=0.001)
    assert newest["replay/samples_per_insert_target"] == 1.0 and 0 < newest["replay/samples_per_insert"] < 2
    assert 0 < newest["replay/sample_age"] <= newest["replay/rows"] <= newest["replay/capacity"]
    assert newest["role/learner/memory_bytes"] > 30e6 and 0 <= newest["role/learner/cpu"] < 64
    assert newest["policy/lag"] > 0 and newest["count/restarts"] >= 3 and ": " in newest["bottleneck"]


def test_panel_shows_the_same_values(run):
    _, _, shown = run
    terminal = Terminal(file=io.StringIO(), width=110, force_terminal=True, color_system=None)
    terminal.print(panel("apex", "", shown[-1], 110, None))
    output = terminal.file.getvalue()
    for text in ("actor x2", "learner", "steps/s", "queue", "busy", "wait", "block", " old", "updates behind",
                 " of 1 samples/insert", "bottleneck", "restarts"):  # fmt: skip
        assert text in output, output


@pytest.mark.reliability("K9")
def test_env_that_always_fails_ends_the_run_with_its_id_and_the_first_traceback(tmp_path):
    (tmp_path / "envs").mkdir()
    run = make_experiment(tmp_path / "envs", ("raise",) * 50, restarts=1)
    with pytest.raises(TrainingFault) as caught:
        run.run(tmp_path / "run", quiet=True)
    message = str(caught.value)
    assert caught.value.exit_code == 4 and "died 2 times" in message and "test:TracedEnv" in message
    reason = "step() of env 'test:TracedEnv' raised OSError: the simulator crashed (traced_env.py, line"
    assert f"the first time: EnvFailure: {reason}" in message and "\n" not in message
    assert "in _fail" in (tmp_path / "run" / "error.txt").read_text()
    summary = Summary.read(tmp_path / "run")
    assert summary.status == "failed" and summary.message == message and summary.restarts >= 1
    assert load_newest(tmp_path / "run" / "checkpoints").info["env_steps"] == summary.env_steps > 0
