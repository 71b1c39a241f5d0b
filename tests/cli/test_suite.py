"""`troop suite` from the command line: invalid input, planning, added recipes and tasks, resuming a suite."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from troop.cli.main import run
from troop.compare import session
from troop.compare.plan import ComparisonPlan
from troop.runs.lock import Lock
from troop.suites.plan import SuitePlan

TWO = ["CartPole-v1,Pendulum-v1", "--recipes", "dqn", "sac"]

INVALID = [
    (["dcm", "--recipes", "sac", "--minutes", "1"], "Unknown suite 'dcm'; did you mean 'dmc'?"),
    (["Pendulum-v1,CartPool-v1", "--recipes", "sac", "--minutes", "1"], "'CartPole-v1'"),
    (["classic", "--minutes", "1"], "--recipes is missing"),
    (["--recipes", "sac", "--minutes", "1"], "No suite is given"),
    (["--run", "nowhere"], "No suite is given and nowhere holds none"),
    (["dmc", "sac", "--minutes", "1"], "recipes follow --recipes"),
    ([*TWO], "--minutes or --env-steps"),
    ([*TWO, "--minutes", "1", "--env-steps", "5"], "both"),
    ([*TWO, "--minutes", "0"], "--minutes is 0"),
    ([*TWO, "--minutes", "1", "--seeds", "0"], "--seeds is 0"),
    ([*TWO, "--minutes", "1", "--seed", "3"], "`troop suite` has no --seed; use --seeds N"),
    ([*TWO, "--minutes", "1", "--env", "Acrobot-v1"], "`troop suite` has no --env; use SUITE"),
    ([*TWO, "--minutes", "1", "--target", "9"], "`troop suite` has no --target"),
    ([*TWO, "--minutes", "1", "--gama", "0.9"], "--gamma"),
    (["CartPole-v1", "--recipes", "dqnn", "--minutes", "1"], "'dqn'"),
    (["CartPole-v1", "--recipes", "low=dqn --gamma 9", "--minutes", "1"], "low: --algorithm.gamma is 9"),
    (
        ["CartPole-v1,Pendulum-v1", "--recipes", "dqn", "--minutes", "1"],
        "No recipe can run Pendulum-v1: dqn: ",
    ),
    ([*TWO, "--tasks", "CartPole-v1", "--minutes", "1"], "sac: CartPole-v1 has discrete actions"),
    (
        ["classic", "--recipes", "dqn", "--tasks", "CartPole-v0", "--minutes", "1"],
        "did you mean CartPole-v1?",
    ),
    (["--report"], "--report needs --run DIR"),
    (["--report", "--run", "nowhere"], "nowhere/suite.json cannot be read"),
]


@pytest.mark.parametrize(("argv", "message"), INVALID, ids=[" ".join(argv) for argv, _ in INVALID])
def test_invalid_input_is_one_sentence_before_anything_starts(argv, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["suite", *argv]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""
    assert captured.err.startswith("troop: ") and len(captured.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == [], "no file is written"


def test_help_lists_the_suites_and_imports_nothing_heavy():
    code = "import sys; from troop.cli.main import run; run(['suite']); run(['--help']); "
    code += "print([m for m in ('torch', 'tyro', 'rich', 'numpy', 'matplotlib') if m in sys.modules])"
    argv = [sys.executable, "-c", code]
    output = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
    assert output.strip().endswith("[]")
    for word in (
        "dmc-12",
        "gym-mujoco",
        "atari-5",
        "--tasks",
        "--report",
        "Ctrl-C",
        "curve.json",
        "exit code",
    ):
        assert word in output
    assert "  suite " in output, "the list of verbs contains it"


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """Run `troop suite` without training and return the plans that it wrote, by env."""
    monkeypatch.setattr(session.Session, "run", lambda self: 0)
    folder = tmp_path / "s"

    def plans_after(*argv, code=0):
        assert run(["suite", *map(str, argv), "--run", str(folder)]) == code
        return {
            comparison.plan.env: comparison.plan for comparison in SuitePlan.read(folder).comparisons(folder)
        }

    plans_after(*TWO, "--minutes", 2, "--seeds", 2, "--envs", 4)
    return plans_after


def test_every_task_is_a_comparison_of_the_recipes_that_can_run_it(suite, tmp_path, capsys):
    plans = suite()
    assert {env: list(plan.recipes) for env, plan in plans.items()} == {
        "CartPole-v1": ["dqn"],
        "Pendulum-v1": ["sac"],
    }
    for env, plan in plans.items():
        assert (plan.minutes, plan.seeds, plan.flags) == (2, 2, ("--envs", "4"))
        assert ComparisonPlan.read(tmp_path / "s" / env) == plan
    evaluation = plans["Pendulum-v1"].recipes["sac"]["evaluation"]
    assert evaluation["seconds"] == 6  # 20 evaluations per run
    stored = SuitePlan.read(tmp_path / "s")
    assert stored.suite is None and stored.tasks == ("CartPole-v1", "Pendulum-v1")
    assert list(stored.left_out) == ["CartPole-v1", "Pendulum-v1"]
    assert "dqn: Pendulum-v1 has continuous actions" in stored.left_out["Pendulum-v1"]["dqn"]
    assert "Left out for dqn: Pendulum-v1. dqn: Pendulum-v1 has" in capsys.readouterr().out


def test_repeating_the_command_keeps_the_plans(suite):
    before = suite()
    assert suite(*TWO, "--minutes", 2, "--seeds", 2, "--envs", 4) == before
    assert suite("--seeds", 1) == before, "seeds are never removed"


def test_recipes_and_seeds_can_be_added_to_all_tasks_or_to_some(suite, tmp_path):
    plans = suite("--recipes", "c51", "td3")
    assert [list(plan.recipes) for plan in plans.values()] == [["dqn", "c51"], ["sac", "td3"]]
    assert plans["Pendulum-v1"].recipes["td3"]["env"]["envs"] == 4, "added recipes use the same flags"
    plans = suite("--recipes", "rainbow", "--tasks", "CartPole-v1", "--seeds", 3)
    assert [plan.seeds for plan in plans.values()] == [3, 2]
    assert [list(plan.recipes) for plan in plans.values()] == [["dqn", "c51", "rainbow"], ["sac", "td3"]]
    assert set(SuitePlan.read(tmp_path / "s").left_out["CartPole-v1"]) == {"sac", "td3"}


def test_variant_has_its_own_settings_on_every_task(suite):
    plans = suite("--recipes", "low=dqn --gamma 0.9", "slow=sac --gamma 0.8")
    assert plans["CartPole-v1"].recipes["low"]["algorithm"]["gamma"] == 0.9
    assert plans["Pendulum-v1"].recipes["slow"]["algorithm"]["gamma"] == 0.8


def test_tasks_can_be_added_with_the_recipes_and_the_budget_of_the_others(suite):
    plans = suite("Acrobot-v1")
    assert list(plans) == ["CartPole-v1", "Pendulum-v1", "Acrobot-v1"]
    added = plans["Acrobot-v1"]
    assert (list(added.recipes), added.minutes, added.seeds, added.flags) == (["dqn"], 2, 2, ("--envs", "4"))


def test_named_suite_is_restricted_and_completed_by_tasks(tmp_path, monkeypatch):
    monkeypatch.setattr(session.Session, "run", lambda self: 0)
    argv = ["suite", "classic", "--run", str(tmp_path / "s"), "--minutes", "1"]
    assert run([*argv, "--recipes", "dqn", "--tasks", "MountainCar-v0", "CartPole-v1"]) == 0
    assert SuitePlan.read(tmp_path / "s").tasks == ("CartPole-v1", "MountainCar-v0"), "in the suite's order"
    assert run(["suite", "--run", str(tmp_path / "s"), "--tasks", "Acrobot-v1"]) == 0
    assert SuitePlan.read(tmp_path / "s").tasks == ("CartPole-v1", "Acrobot-v1", "MountainCar-v0")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--minutes", "3"], "--minutes is 3 but each run"),
        (["--env-steps", "500"], "--env-steps is 500 but each run"),
        (["--envs", "8"], "--envs 8 is given but"),
        (["classic"], "SUITE is classic but"),
        (["--tasks", "Acrobot-v1"], "--tasks names Acrobot-v1"),
        (["--recipes", "apex-dqn", "--tasks", "Pendulum-v1"], "apex-dqn: Pendulum-v1 has continuous actions"),
    ],
)
def test_another_budget_suite_or_setting_is_rejected(suite, argv, message, capsys):
    before = suite()
    assert suite(*argv, code=2) == before
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1


def test_another_machine_is_rejected_while_runs_are_left(suite, tmp_path, capsys):
    plan = suite()["Pendulum-v1"]
    dataclasses.replace(plan, machine=plan.machine | {"cores": 999}).write(tmp_path / "s" / "Pendulum-v1")
    suite(code=2)
    assert "999 cores" in capsys.readouterr().err


def test_curves_of_other_programs_may_be_there_before_the_suite(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(session.Session, "run", lambda self: 0)
    path = tmp_path / "s" / "Pendulum-v1" / "sbx-sac" / "seed1"
    path.mkdir(parents=True)
    (path / "curve.json").write_text('{"name": "sbx-sac", "command": "x", "points": [[1, 1, -500]]}')
    argv = ["suite", "Pendulum-v1", "--recipes", "sac", "--minutes", "1", "--run", str(tmp_path / "s")]
    good = (path / "curve.json").read_text()
    (path / "log.txt").write_text("other files beside the curve do no harm")
    for text, again in [("{", "cannot be used"), (good, ""), ("{", "cannot be used")]:
        (path / "curve.json").write_text(text)
        assert run(argv) == (2 if again else 0)
        assert again in capsys.readouterr().err
    assert run([*argv[:3], "sbx-sac=sac", *argv[4:]]) == 2
    (path / "curve.json").write_text(good)
    assert run([*argv[:3], "sbx-sac=sac", *argv[4:]]) == 2
    assert "give the curve another name" in capsys.readouterr().err


def test_directory_with_other_content_is_rejected(tmp_path, capsys):
    argv = ["suite", "CartPole-v1", "--recipes", "dqn", "--minutes", "1", "--run"]
    for name, file, text, message in [
        ("run", "config.json", "{}", "holds a run"),
        ("comparison", "compare.json", "{}", "holds a comparison"),
        ("full", "notes.txt", "text", "not empty"),
        ("task", "CartPole-v1/notes.txt", "text", "not empty"),
        ("truncated", "suite.json", '{"suite": ', "damaged"),
        ("list", "suite.json", "[]", "damaged"),
        ("old", "suite.json", '{"version": 0}', "of another version"),
        ("fields", "suite.json", '{"version": 1, "suite": null, "tasks": 5, "left_out": {}}', "damaged"),
        ("empty", "suite.json", '{"version": 1, "suite": null, "tasks": [], "left_out": {}}', "damaged"),
        ("dots", "suite.json", '{"version": 1, "suite": null, "tasks": [".."], "left_out": {}}', "damaged"),
        (
            "gone",
            "suite.json",
            '{"version": 1, "suite": null, "tasks": ["A"], "left_out": {}}',
            "cannot be read",
        ),
    ]:
        path = tmp_path / name / file
        path.parent.mkdir(parents=True)
        path.write_text(text)
        assert run([*argv, str(tmp_path / name)]) == 2, name
        assert message in capsys.readouterr().err
        assert path.read_text() == text and not (tmp_path / name / "results.md").exists()
    (tmp_path / "file").write_text("")
    assert run([*argv, str(tmp_path / "file")]) == 2 and "is a file" in capsys.readouterr().err


def test_two_suites_in_one_directory_are_rejected(suite, tmp_path, capsys):
    for folder in (tmp_path / "s", tmp_path / "s" / "Pendulum-v1"):
        lock = Lock(folder)
        suite(code=2)
        lock.release()
        assert "in use" in capsys.readouterr().err


TINY = [
    "--envs",
    "4",
    "--evaluation.episodes",
    "2",
    "--system.learning-starts",
    "50",
    "--evaluation.env-steps",
    "100",
]
FULL_RUN = [
    "suite",
    "toy:PointMass,CartPole-v1",
    "--recipes",
    "sac",
    "dqn",
    *TINY,
    "--seeds",
    "1",
    "--run",
    "s",
]


def run_and_interrupt(folder, *argv):
    """Send Ctrl-C after the first run has written metrics; return output, errors and exit code."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "troop", *argv], cwd=folder, env=env, stdout=-1, stderr=-1, text=True
    )
    metrics = folder / "s" / "toy_PointMass" / "sac" / "seed1" / "metrics.jsonl"
    try:
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        return *process.communicate(timeout=300), process.returncode
    finally:
        process.kill()  # no effect unless the test fails or times out


@pytest.mark.timeout(900)  # several processes import torch: minutes on a busy machine
def test_stopped_suite_is_resumed_and_reported_again(tmp_path, monkeypatch, capsys):
    output, errors, code = run_and_interrupt(tmp_path, *FULL_RUN, "--env-steps", "400")
    assert code == 3, output + errors
    assert "Continue with: troop suite --run s" in output and "Traceback" not in errors
    folder = tmp_path / "s"
    assert (
        json.loads((folder / "toy_PointMass" / "sac" / "seed1" / "summary.json").read_text())["status"]
        == "stopped"
    )
    assert not (folder / "CartPole-v1" / "dqn" / "seed1").exists()
    assert json.loads((folder / "results.json").read_text())["recipes"] == []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "background_load", lambda: 0.0)
    assert run(["suite", "--run", "s"]) == 0
    results = json.loads((folder / "results.json").read_text())
    assert [(row["task"], row["recipe"], row["status"]) for row in results["runs"]] == [
        ("toy:PointMass", "sac", "done"),
        ("CartPole-v1", "dqn", "done"),
    ]
    assert all(400 <= row["env_steps"] < 500 for row in results["runs"])
    assert {recipe["recipe"]: recipe["tasks"] for recipe in results["recipes"]} == {
        "sac": ["toy:PointMass"],
        "dqn": ["CartPole-v1"],
    }
    capsys.readouterr()
    (folder / "results.md").unlink()
    curve = folder / "CartPole-v1" / "sb3-dqn" / "seed1" / "curve.json"
    curve.parent.mkdir(parents=True)
    curve.write_text(
        json.dumps({"name": "sb3-dqn", "command": "python dqn.py", "points": [[5.0, 300, 500.0]]})
    )
    assert run(["suite", "--run", "s", "--report"]) == 0
    assert "sb3-dqn (external)" in (folder / "results.md").read_text()
    assert "starting" not in capsys.readouterr().out
    assert not list(folder.rglob("*.stderr"))
