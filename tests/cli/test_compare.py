"""`troop compare` as a user runs it: mistakes, mixtures, and one comparison that is stopped and goes on."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from troop.cli.main import run
from troop.compare import planning, session
from troop.compare.notes import notes
from troop.compare.plan import Plan

TINY = ["--env", "toy:Sleepy", "--env.discrete", "--env.seconds", "0.01", "--envs", "4"]
TINY += ["--evaluation.episodes", "2", "--system.learning-starts", "50", "--system.schedule.batch-size", "16"]

MISTAKES = [
    (["dqnn", "--env", "CartPole-v1", "--minutes", "1"], "'dqn'"),
    (["dqn", "fasttd3", "--env", "CartPole-v1", "--minutes", "1"], "fasttd3: "),
    (["dqn", "--env", "CartPool-v1", "--minutes", "1"], "'CartPole-v1'"),
    (["dqn", "--minutes", "1"], "--env"),
    (["dqn", "--env", "CartPole-v1"], "--minutes or --env-steps"),
    (["--env", "CartPole-v1", "--minutes", "1"], "Which recipes?"),
    (["dqn", "--env", "CartPole-v1", "--minutes", "1", "--env-steps", "5"], "both"),
    (["dqn", "--env", "CartPole-v1", "--minutes", "0"], "--minutes is 0"),
    (["dqn", "--env", "CartPole-v1", "--minutes", "nan"], "--minutes is nan"),
    (["dqn", "--env", "CartPole-v1", "--env-steps", "0"], "--env-steps is 0"),
    (["dqn", "--env", "CartPole-v1", "--env-steps", "many"], "--env-steps"),
    (["dqn", "--env", "CartPole-v1", "--minutes", "1", "--seeds", "0"], "--seeds is 0"),
    (["dqn", "--env", "CartPole-v1", "--minutes", "1", "--seeds"], "--seeds"),
    (["dqn", "--env", "CartPole-v1", "--minutes", "1", "--seed", "3"], "--seeds N"),
    (["dqn", "--env", "CartPole-v1", "--minutes", "1", "--target", "400"], "--thresholds"),
    (["dqn", "--env", "CartPole-v1", "--minutes", "1", "--thresholds", "inf"], "--thresholds"),
    (["dqn", "--env", "CartPole-v1", "--minutes", "1", "--envs", "0"], "--envs is 0"),
    (["dqn", "--env", "CartPole-v1", "--minutes", "1", "--gamma", "0.9"], "--algorithm.gamma"),
    (
        ["dqn", "apex-dqn", "--env", "CartPole-v1", "--minutes", "1", "--system.schedule.batch-size", "9"],
        "apex-dqn: ",
    ),
    (["--run", "nowhere"], "holds no comparison"),
    (["dqn=dqn --algorithm.gamma 0.9", "--env", "CartPole-v1", "--minutes", "1"], "is no recipe's"),
    (["a/b=dqn --algorithm.gamma 0.9", "--env", "CartPole-v1", "--minutes", "1"], "letters, digits"),
    (["low=dqnn --algorithm.gamma 0.9", "--env", "CartPole-v1", "--minutes", "1"], "'dqn'"),
    (["low=dqn --algorithm.gama 0.9", "--env", "CartPole-v1", "--minutes", "1"], "--algorithm.gamma"),
    (
        ["low=dqn --algorithm.gamma 9", "--env", "CartPole-v1", "--minutes", "1"],
        "low: --algorithm.gamma is 9",
    ),
    (["low=dqn --minutes 9", "--env", "CartPole-v1", "--minutes", "1"], "low: --minutes is the same for all"),
    (["low=dqn --env_steps 5", "--env", "CartPole-v1", "--minutes", "1"], "low: --env-steps is the same for"),
    (["dqn", "--env", "CartPole-v1", "--minutes", "1", "--env_steps", "5"], "both"),
    (["results.md=dqn", "--env", "CartPole-v1", "--minutes", "1"], "no file's"),
    (["low=dqn", "low=c51", "--env", "CartPole-v1", "--minutes", "1"], "low is named twice"),
    (["low=dqn --name 'x", "--env", "CartPole-v1", "--minutes", "1"], "cannot be read"),
]


@pytest.mark.parametrize(("argv", "said"), MISTAKES, ids=[" ".join(argv) for argv, _ in MISTAKES])
def test_a_mistake_is_one_sentence_before_anything_starts(argv, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["compare", *argv]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and captured.out == ""
    assert captured.err.startswith("troop: ") and len(captured.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_help_teaches_and_imports_nothing_heavy():
    code = "import sys; from troop.cli.main import run; run(['compare']); run(['--help']); "
    code += "print([m for m in ('torch', 'tyro', 'rich', 'numpy', 'matplotlib') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip().endswith("[]")
    for word in ("--thresholds", "--seeds", "Ctrl-C", "troop compare --run DIR", "results.md", "exit code"):
        assert word in done.stdout
    assert "  compare " in done.stdout, "the list of verbs has it"


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """Plans are made and written; nothing is run."""
    monkeypatch.setattr(session.Session, "run", lambda self: 0)

    def compare(*argv, code=0):
        assert run(["compare", *map(str, argv), "--run", str(tmp_path / "c")]) == code
        return Plan.read(tmp_path / "c")

    compare("dqn", "c51", *TINY, "--minutes", 2, "--seeds", 2)
    return compare


def test_the_plan_states_whole_experiments_with_one_budget(planned):
    plan = planned()
    assert (
        list(plan.recipes) == ["dqn", "c51"]
        and plan.seeds == 2
        and plan.minutes == 2
        and plan.env_steps is None
    )
    for made in plan.recipes.values():
        assert made["until"]["minutes"] == 2 and made["env"]["id"] == "Sleepy" and made["env"]["envs"] == 4
        assert made["evaluation"]["episodes"] == 2 and made["evaluation"]["seconds"] == 6  # 20 a run
    assert list(plan.runs()) == [("dqn", 1), ("c51", 1), ("dqn", 2), ("c51", 2)]


def test_recipes_seeds_and_thresholds_may_be_added(planned):
    plan = planned("rainbow", "--seeds", 3, "--thresholds", -5, 7.5)
    assert (
        list(plan.recipes) == ["dqn", "c51", "rainbow"] and plan.seeds == 3 and plan.thresholds == (-5, 7.5)
    )
    assert plan.recipes["rainbow"]["env"] == plan.recipes["dqn"]["env"], "under the same terms"
    assert plan.recipes["rainbow"]["evaluation"] == plan.recipes["dqn"]["evaluation"]
    assert planned("--seeds", 1).seeds == 3, "what is there stays"


def test_a_recipe_may_be_compared_with_itself_in_other_settings(planned, capsys):
    low = "low=dqn --algorithm.gamma 0.9 --algorithm.n-step=2"
    plan = planned(low)
    assert list(plan.recipes) == ["dqn", "c51", "low"]
    ours, theirs = plan.recipes["low"]["algorithm"], plan.recipes["dqn"]["algorithm"]
    assert (ours["gamma"], ours["n_step"]) == (0.9, 2) and theirs["gamma"] != 0.9
    assert ours | {"gamma": theirs["gamma"], "n_step": theirs["n_step"]} == theirs
    assert planned("--seeds", 2) == plan == planned(low), "known by its name, or said again"
    assert "low is `dqn --algorithm.gamma 0.9 --algorithm.n-step=2`." in notes(plan, [])
    planned(low.replace("0.9", "0.8"), code=2)
    assert "--algorithm.gamma is 0.8 for low" in capsys.readouterr().err
    planned("--envs", 8, low, code=2)  # named behind a flag
    assert "--envs is 8 for dqn" in capsys.readouterr().err


def test_the_same_command_is_the_same_comparison(planned):
    before = planned()
    assert planned("dqn", "c51", *TINY, "--minutes", 2, "--seeds", 2) == before


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--minutes", "3"], "--minutes is 3 but each run"),
        (["--env-steps", "500"], "--env-steps is 500 but each run"),
        (["--env", "toy:Clock"], "--env is toy:Clock but"),
        (["--envs", "8"], "--envs is 8 for dqn"),
        ([*TINY[2:], "--algorithm.gamma", "0.5"], "--algorithm.gamma is 0.5 for dqn"),
        ([*TINY[2:], "--evaluation.episodes", "3"], "--evaluation.episodes is 3 for dqn"),
    ],
)
def test_another_budget_env_or_setting_is_refused(planned, argv, said, capsys):
    before = planned()
    assert planned(*argv, code=2) == before
    captured = capsys.readouterr().err
    assert said in captured and "another --run" in captured and len(captured.strip().splitlines()) == 1


def test_a_run_of_another_budget_in_a_seeds_place_is_refused(planned, tmp_path, capsys):
    config = planned().recipes["dqn"]
    config = config | {"until": config["until"] | {"minutes": 9.0}}
    (tmp_path / "c" / "dqn" / "seed1").mkdir(parents=True)
    (tmp_path / "c" / "dqn" / "seed1" / "config.json").write_text(json.dumps(config))
    planned(code=2)
    assert "was run with --minutes 9.0 where the comparison has 2.0" in capsys.readouterr().err


def test_another_machine_is_refused_while_runs_are_left(planned, tmp_path, capsys, monkeypatch):
    plan = planned()
    dataclasses.replace(plan, machine=plan.machine | {"cores": 999}).write(tmp_path / "c")
    planned(code=2)
    assert "999 cores" in capsys.readouterr().err
    done = [
        dataclasses.replace(found, status="done")
        for found in planning.run_result.gather(plan, tmp_path / "c")
    ]
    monkeypatch.setattr(planning.run_result, "gather", lambda *_: done)
    planned()  # what is done may be read anywhere


def test_a_directory_with_something_else_in_it_is_refused(tmp_path, capsys):
    argv = ["compare", "dqn", *TINY, "--minutes", "1", "--run"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("all of it")
    (tmp_path / "file").write_text("")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "compare.json").write_text('{"env": ')
    plan = Plan("toy:Clock", 1.0, None, 1, (), (), {}, {"../../elsewhere": {}})
    (tmp_path / "sly").mkdir()
    plan.write(tmp_path / "sly")
    for name, said in [
        ("run", "holds a run"),
        ("full", "not empty"),
        ("file", "is a file"),
        ("torn", "damaged"),
        ("sly", "damaged"),
    ]:
        assert run([*argv, str(tmp_path / name)]) == 2
        assert said in capsys.readouterr().err
    assert [entry.name for entry in (tmp_path / "full").iterdir()] == ["thesis.tex"]


def test_two_at_once_are_refused(planned, tmp_path, capsys):
    lock = planning.Lock(tmp_path / "c")
    planned(code=2)
    lock.release()
    assert "in use" in capsys.readouterr().err


WHOLE = ["compare", "dqn", "c51", *TINY, "--evaluation.env-steps", "100", "--run", "c"]


def interrupted(folder, *argv):
    """A process that got a Ctrl-C once its first run had been evaluated: exit code, output, errors."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "troop", *argv], cwd=folder, env=env, stdout=-1, stderr=-1, text=True
    )
    metrics = folder / "c" / "dqn" / "seed1" / "metrics.jsonl"
    try:
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        return *process.communicate(timeout=300), process.returncode
    finally:
        process.kill()  # nothing to do unless a test fails or runs out of time


@pytest.mark.timeout(900)  # four processes that import torch: minutes where others use the cores
def test_a_comparison_is_stopped_goes_on_and_is_not_mixed(tmp_path, monkeypatch, capsys):
    said, errors, code = interrupted(tmp_path, *WHOLE, "--env-steps", "600", "--seeds", "1")
    assert code == 3, said + errors
    assert "go on with: troop compare --run c" in said.lower() and "Traceback" not in errors
    folder = tmp_path / "c"
    assert json.loads((folder / "dqn" / "seed1" / "summary.json").read_text())["status"] == "stopped"
    assert not (folder / "c51" / "seed1").exists()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "busy", lambda: 0.0)
    assert run([*WHOLE, "--env-steps", "700"]) == 2
    assert "600 env steps" in capsys.readouterr().err
    assert run(["compare", "--run", "c"]) == 0
    known = json.loads((folder / "results.json").read_text())
    runs = {found["recipe"]: found for found in known["runs"]}
    assert {found["status"] for found in runs.values()} == {"done"}
    assert runs["dqn"]["resumed"] == 1 and runs["c51"]["resumed"] == 0
    assert all(600 <= found["env_steps"] < 700 and not found["early"] for found in runs.values())
    assert len(known["recipes"][0]["by_env_steps"]["at"]) > 3
    config = json.loads((folder / "c51" / "seed1" / "config.json").read_text())
    assert config == Plan.read(folder).recipes["c51"], "an ordinary run directory, run from the plan"
    assert not list(folder.rglob("*.stderr"))
