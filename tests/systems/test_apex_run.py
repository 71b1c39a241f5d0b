"""A run of Ape-X in its directory, in an env that breaks in three ways on the way: what is told of it."""

import dataclasses
import io
import json

import pytest
from rich.console import Console as Terminal
from test_apex import DQN
from test_apex import SMALL as APEX
from witness import Witness, broken, examined, performed

from troop import experiment
from troop.core.engine import Until
from troop.core.errors import TrainingFault
from troop.engines import Processes
from troop.logs.panel import panel
from troop.run_recorder import RunRecorder
from troop.runs import curve
from troop.runs.checkpoint import load_newest
from troop.runs.summary import Summary
from troop.systems.settings import Evaluation

FAULTS = ("raise", "abort", "hang")
TOLD = [f"role/actor1/{what}" for what in ("steps_per_s", "queue", "busy", "waiting", "blocked", "idle")] + [
    "policy/lag",
    "replay/rows",
    "replay/age",
    "replay/age_s",
    "replay/samples_per_insert",
    "replay/samples_per_insert_wanted",
    "rate/env_steps_per_s",
    "bottleneck",
    "count/restarts",
]


def made(folder, faults, **engine):
    pace = {"threads": 1, "log_s": 0.25, "checkpoint_s": 1.0} | engine
    return experiment.Experiment(
        Witness(str(folder), faults=faults),
        DQN,
        dataclasses.replace(APEX, replay_capacity=400_000, samples_per_insert=1.0, overlap=False),
        Processes(**pace),
        Until(minutes=3),
        Evaluation(episodes=2, env_steps=300, longest=20),
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The run's directory, the lives of its env, and all that was shown; it stops when enough was told."""
    folder, lives, shown = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("lives"), []

    class Seen(RunRecorder):
        """Shows its panel to the test."""

        def log(self, counters, metrics):
            super().log(counters, metrics)
            shown.append(self._progress(counters, self.roles))

        def stop_asked(self):
            dead = broken(lives)
            living = [steps for life, steps in performed(lives).items() if life not in dead]
            known = set(self.last) | {"bottleneck", "count/restarts", "replay/age_s"}
            restarts = shown[-1].counters["restarts"] if shown else 0
            groups = {(group.kind, group.count) for group in shown[-1].roles} if shown else set()
            told = ("actor", 2) in groups and set(TOLD) <= known  # the one that died is back
            return restarts >= 3 and max(living, default=0) > 100 and told

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "RunRecorder", Seen)
        patch.setattr(curve, "plot", lambda *_: None)  # drawing takes longer than the run
        # Long enough for hosts on a busy machine, short enough for a test: a hang is found after so long.
        result = made(lives, FAULTS, step_limit_s=4.0, restarts=50).run(folder / "run", quiet=True)
    assert result.status == "stopped"
    return folder / "run", lives, shown


@pytest.fixture(scope="module")
def lines(run):
    return [json.loads(line) for line in (run[0] / "metrics.jsonl").read_text().splitlines()]


def test_an_env_that_raises_aborts_or_hangs_costs_its_actor_a_restart_and_no_more(run):
    folder, lives, _ = run
    dead = broken(lives)
    assert [performed(lives)[life] for life in dead] == [30, 30, 30]
    assert Summary.read(folder).restarts >= 3
    held = examined(load_newest(folder / "checkpoints").state["replay.replay"], envs=2)
    assert max(held[dead[0]]) < 30  # its rows up to then are whole, as are those of whoever came after
    assert max(len(steps) for life, steps in held.items() if life not in dead) > 50


@pytest.mark.parametrize("name", TOLD)
def test_everything_about_roles_and_flow_is_written(name, lines):
    assert any(name in line for line in lines)


def test_what_is_written_can_be_believed(lines):
    last = {name: value for line in lines for name, value in line.items()}
    shares = [last[f"role/actor1/{what}"] for what in ("busy", "waiting", "blocked", "idle")]
    assert sum(shares) == pytest.approx(1, abs=0.001)
    assert last["replay/samples_per_insert_wanted"] == 1.0 and 0 < last["replay/samples_per_insert"] < 2
    assert 0 < last["replay/age"] <= last["replay/rows"] <= last["replay/capacity"]
    assert last["policy/lag"] > 0 and last["count/restarts"] >= 3 and ": " in last["bottleneck"]


def test_the_panel_shows_the_same(run):
    _, _, shown = run
    terminal = Terminal(file=io.StringIO(), width=110, force_terminal=True, color_system=None)
    terminal.print(panel("apex", "", shown[-1], 110, None))
    text = terminal.file.getvalue()
    for said in ("actor x2", "learner", "steps/s", "queue", "busy", "wait", "block", " old", "updates behind",
                 " of 1 samples/insert", "bottleneck", "restarts"):  # fmt: skip
        assert said in text, text


def test_an_env_that_always_breaks_ends_the_run_with_its_name_and_the_first_traceback(tmp_path):
    (tmp_path / "lives").mkdir()
    run = made(tmp_path / "lives", ("raise",) * 50, restarts=1)
    with pytest.raises(TrainingFault) as caught:
        run.run(tmp_path / "run", quiet=True)
    said = str(caught.value)
    assert caught.value.exit_code == 4 and "died 2 times" in said and "test:Witness" in said
    assert "the first time: OSError: the simulator is gone (in step())" in said and "\n" not in said
    assert "in _break" in (tmp_path / "run" / "error.txt").read_text()
    summary = Summary.read(tmp_path / "run")
    assert summary.status == "failed" and summary.message == said and summary.restarts >= 1
    assert load_newest(tmp_path / "run" / "checkpoints").info["env_steps"] == summary.env_steps > 0
