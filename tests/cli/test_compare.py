"""`troop compare` from the command line: invalid input, conflicting plans, and resuming a comparison."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from troop.cli.compare import make_experiment
from troop.cli.main import run
from troop.compare import planning, session
from troop.compare.notes import notes
from troop.compare.plan import ComparisonPlan
from troop.experiment import Experiment

TINY = ["--env", "toy:Sleepy", "--env.discrete", "--env.seconds", "0.01", "--envs", "4"]
TINY += ["--evaluation.episodes", "2", "--system.learning-starts", "50", "--system.schedule.batch-size", "16"]

INVALID = [
    (["dqnn", "--env", "CartPole-v1", "--minutes", "1"], "'dqn'"),
    (["dqn", "fasttd3", "--env", "CartPole-v1", "--minutes", "1"], "fasttd3: "),
    (["dqn", "--env", "CartPool-v1", "--minutes", "1"], "'CartPole-v1'"),
    (["dqn", "--minutes", "1"], "--env"),
    (["dqn", "--env", "CartPole-v1"], "--minutes or --env-steps"),
    (["--env", "CartPole-v1", "--minutes", "1"], "No recipe is given"),
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
    (["dqn", "--env", "CartPole-v1", "--minutes", "1", "--gama", "0.9"], "--gamma"),
    (
        ["dqn", "--env", "CartPole-v1", "--minutes", "1", "--threads", "2"],
        "--env.threads or --engine.threads",
    ),
    (
        ["dqn", "apex-dqn", "--env", "CartPole-v1", "--minutes", "1", "--system.schedule.batch-size", "9"],
        "apex-dqn: ",
    ),
    (["--run", "nowhere"], "holds no comparison"),
    (["dqn=dqn --algorithm.gamma 0.9", "--env", "CartPole-v1", "--minutes", "1"], "not the name of a recipe"),
    (["a/b=dqn --algorithm.gamma 0.9", "--env", "CartPole-v1", "--minutes", "1"], "letters, digits"),
    (["low=dqnn --algorithm.gamma 0.9", "--env", "CartPole-v1", "--minutes", "1"], "'dqn'"),
    (["low=dqn --algorithm.gama 0.9", "--env", "CartPole-v1", "--minutes", "1"], "--algorithm.gamma"),
    (
        ["low=dqn --algorithm.gamma 9", "--env", "CartPole-v1", "--minutes", "1"],
        "low: --algorithm.gamma is 9",
    ),
    (["low=dqn --minutes 9", "--env", "CartPole-v1", "--minutes", "1"], "low: --minutes applies to all"),
    (["low=dqn --env_steps 5", "--env", "CartPole-v1", "--minutes", "1"], "low: --env-steps applies to all"),
    (["dqn", "--env", "CartPole-v1", "--minutes", "1", "--env_steps", "5"], "both"),
    (["results.md=dqn", "--env", "CartPole-v1", "--minutes", "1"], "or of a file"),
    (["low=dqn", "low=c51", "--env", "CartPole-v1", "--minutes", "1"], "low is named twice"),
    (
        ["dqn", "short=dqn --env.settings max_episode_steps 100", "--env", "CartPole-v1", "--minutes", "1"],
        "dqn is evaluated with --env.settings [] and short with [['max_episode_steps', 100]], so that",
    ),
    (
        ["dqn", "short=dqn --max-episode-steps 100", "--env", "CartPole-v1", "--minutes", "1"],
        "dqn is evaluated with --evaluation.max-episode-steps 501 and short with 100, so that their returns",
    ),
    (
        ["dqn", "random=dqn --evaluation.explore 0.05", "--env", "CartPole-v1", "--minutes", "1"],
        "dqn is evaluated with --evaluation.explore 0.0 and random with 0.05, so that their returns",
    ),
    (["low=dqn --name 'x", "--env", "CartPole-v1", "--minutes", "1"], "cannot be parsed"),
]


@pytest.mark.parametrize(("argv", "message"), INVALID, ids=[" ".join(argv) for argv, _ in INVALID])
def test_invalid_input_is_one_sentence_before_anything_starts(argv, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["compare", *argv]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""
    assert captured.err.startswith("troop: ") and len(captured.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == [], "no file is written"


def test_help_explains_and_imports_nothing_heavy():
    code = "import sys; from troop.cli.main import run; run(['compare']); run(['--help']); "
    code += "print([m for m in ('torch', 'tyro', 'rich', 'numpy', 'matplotlib') if m in sys.modules])"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert process.stdout.strip().endswith("[]")
    for word in ("--thresholds", "--seeds", "Ctrl-C", "troop compare --run DIR", "results.md", "exit code"):
        assert word in process.stdout
    assert "  compare " in process.stdout, "the list of verbs contains it"


@pytest.fixture
def compare(tmp_path, monkeypatch):
    """Run `troop compare` without training and return the plan that it wrote."""
    monkeypatch.setattr(session.Session, "run", lambda self: 0)

    def plan_after(*argv, code=0):
        assert run(["compare", *map(str, argv), "--run", str(tmp_path / "c")]) == code
        return ComparisonPlan.read(tmp_path / "c")

    plan_after("dqn", "c51", *TINY, "--minutes", 2, "--seeds", 2)
    return plan_after


def test_plan_contains_complete_experiments_with_one_budget(compare):
    plan = compare()
    assert list(plan.recipes) == ["dqn", "c51"] and plan.seeds == 2
    assert plan.minutes == 2 and plan.env_steps is None
    for config in plan.recipes.values():
        env, evaluation = config["env"], config["evaluation"]
        assert config["until"]["minutes"] == 2 and env["id"] == "Sleepy" and env["envs"] == 4
        assert evaluation["episodes"] == 2 and evaluation["seconds"] == 6  # 20 evaluations per run
    assert list(plan.runs()) == [("dqn", 1), ("c51", 1), ("dqn", 2), ("c51", 2)]


def test_interval_flag_in_short_form_replaces_the_default_of_20_evaluations():
    args = planning.CompareArgs(env="CartPole-v1", minutes=2, flags=("--seconds", "7"))
    assert make_experiment("dqn", args).evaluation.seconds == 7
    assert make_experiment("dqn", dataclasses.replace(args, flags=())).evaluation.seconds == 6


def test_recipes_seeds_and_thresholds_can_be_added(compare):
    plan = compare("rainbow", "--seeds", 3, "--thresholds", -5, 7.5)
    assert (
        list(plan.recipes) == ["dqn", "c51", "rainbow"] and plan.seeds == 3 and plan.thresholds == (-5, 7.5)
    )
    assert plan.recipes["rainbow"]["env"] == plan.recipes["dqn"]["env"], "added recipes use the same flags"
    assert plan.recipes["rainbow"]["evaluation"] == plan.recipes["dqn"]["evaluation"]
    assert compare("--seeds", 1).seeds == 3, "seeds are never removed"


def test_variant_of_a_recipe_has_its_own_settings(compare, capsys):
    low = "low=dqn --gamma 0.9 --algorithm.n-step=2"
    plan = compare(low)
    assert list(plan.recipes) == ["dqn", "c51", "low"]
    variant, base = plan.recipes["low"]["algorithm"], plan.recipes["dqn"]["algorithm"]
    assert (variant["gamma"], variant["n_step"]) == (0.9, 2) and base["gamma"] != 0.9
    assert variant | {"gamma": base["gamma"], "n_step": base["n_step"]} == base
    assert compare("--seeds", 2) == plan == compare(low), "the variant is stored, and may be repeated"
    assert "low is `dqn --gamma 0.9 --algorithm.n-step=2`." in notes(plan, [])
    compare(low.replace("0.9", "0.8"), code=2)
    assert "--algorithm.gamma is 0.8 for low" in capsys.readouterr().err
    compare("--envs", 8, low, code=2)  # named after a flag
    assert "--envs is 8 for dqn" in capsys.readouterr().err


def test_added_recipe_must_be_evaluated_as_the_others(compare, capsys):
    before = compare()
    assert compare("random=dqn --evaluation.explore 0.1", code=2) == before
    assert "dqn is evaluated with --evaluation.explore 0.0 and random with 0.1" in capsys.readouterr().err


def test_recipes_that_train_a_humanoid_on_different_rewards_can_be_compared(tmp_path):
    args = planning.CompareArgs(
        ("fasttd3", "apex-dpg", "plain"),
        "T1JoystickFlatTerrain-v1",
        minutes=1.0,
        variants={"plain": ("fasttd3", "--env.reward", "default")},
    )
    recipes = planning.new_plan(args, make_experiment, tmp_path).recipes
    assert [config["env"]["reward"] for config in recipes.values()] == ["tuned", "tuned", "default"]
    evaluation = [Experiment.from_dict(config).env.for_evaluation() for config in recipes.values()]
    assert len({(env.settings, env.reward) for env in evaluation}) == 1


def test_repeating_the_command_keeps_the_plan(compare):
    before = compare()
    assert compare("dqn", "c51", *TINY, "--minutes", 2, "--seeds", 2) == before


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--minutes", "3"], "--minutes is 3 but each run"),
        (["--env-steps", "500"], "--env-steps is 500 but each run"),
        (["--env", "toy:Clock"], "--env is toy:Clock but"),
        (["--envs", "8"], "--envs is 8 for dqn"),
        ([*TINY[2:], "--algorithm.gamma", "0.5"], "--algorithm.gamma is 0.5 for dqn"),
        ([*TINY[2:], "--evaluation.episodes", "3"], "--evaluation.episodes is 3 for dqn"),
    ],
)
def test_another_budget_env_or_setting_is_rejected(compare, argv, message, capsys):
    before = compare()
    assert compare(*argv, code=2) == before
    error = capsys.readouterr().err
    assert message in error and "another --run" in error and len(error.strip().splitlines()) == 1


def test_run_directory_with_another_budget_is_rejected(compare, tmp_path, capsys):
    config = compare().recipes["dqn"]
    config = config | {"until": config["until"] | {"minutes": 9.0}}
    (tmp_path / "c" / "dqn" / "seed1").mkdir(parents=True)
    (tmp_path / "c" / "dqn" / "seed1" / "config.json").write_text(json.dumps(config))
    compare(code=2)
    assert "was run with --minutes 9.0 where the comparison has 2.0" in capsys.readouterr().err


def test_another_machine_is_rejected_while_runs_are_left(compare, tmp_path, capsys, monkeypatch):
    plan = compare()
    dataclasses.replace(plan, machine=plan.machine | {"cores": 999}).write(tmp_path / "c")
    compare(code=2)
    assert "999 cores" in capsys.readouterr().err
    done = [
        dataclasses.replace(result, status="done")
        for result in planning.run_result.read_runs(plan, tmp_path / "c")
    ]
    monkeypatch.setattr(planning.run_result, "read_runs", lambda *_: done)
    compare()  # a finished comparison can be shown on any machine


def test_directory_with_other_content_is_rejected(tmp_path, capsys):
    argv = ["compare", "dqn", *TINY, "--minutes", "1", "--run"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("text")
    (tmp_path / "file").write_text("")
    (tmp_path / "truncated").mkdir()
    (tmp_path / "truncated" / "compare.json").write_text('{"env": ')
    plan = ComparisonPlan("toy:Clock", 1.0, None, 1, (), (), {}, {"../../elsewhere": {}})
    (tmp_path / "path-traversal").mkdir()
    plan.write(tmp_path / "path-traversal")
    for name, message in [
        ("run", "holds a run"),
        ("full", "not empty"),
        ("file", "is a file"),
        ("truncated", "damaged"),
        ("path-traversal", "damaged"),
    ]:
        assert run([*argv, str(tmp_path / name)]) == 2
        assert message in capsys.readouterr().err
    assert [entry.name for entry in (tmp_path / "full").iterdir()] == ["notes.txt"]


def test_two_comparisons_in_one_directory_are_rejected(compare, tmp_path, capsys):
    lock = planning.Lock(tmp_path / "c")
    compare(code=2)
    lock.release()
    assert "in use" in capsys.readouterr().err


FULL_RUN = ["compare", "dqn", "c51", *TINY, "--evaluation.env-steps", "100", "--run", "c"]


def run_and_interrupt(folder, *argv):
    """Send Ctrl-C after the first run has written metrics; return output, errors and exit code."""
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
        process.kill()  # no effect unless the test fails or times out


@pytest.mark.timeout(900)  # four processes import torch: minutes on a busy machine
def test_stopped_comparison_is_resumed_and_rejects_another_budget(tmp_path, monkeypatch, capsys):
    output, errors, code = run_and_interrupt(tmp_path, *FULL_RUN, "--env-steps", "600", "--seeds", "1")
    assert code == 3, output + errors
    assert "Continue with: troop compare --run c" in output and "Traceback" not in errors
    folder = tmp_path / "c"
    assert json.loads((folder / "dqn" / "seed1" / "summary.json").read_text())["status"] == "stopped"
    assert not (folder / "c51" / "seed1").exists()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "background_load", lambda: 0.0)
    assert run([*FULL_RUN, "--env-steps", "700"]) == 2
    assert "600 env steps" in capsys.readouterr().err
    assert run(["compare", "--run", "c"]) == 0
    results = json.loads((folder / "results.json").read_text())
    runs = {run["recipe"]: run for run in results["runs"]}
    assert {run["status"] for run in runs.values()} == {"done"}
    assert runs["dqn"]["resumed"] == 1 and runs["c51"]["resumed"] == 0
    assert all(600 <= run["env_steps"] < 700 and not run["ended_early"] for run in runs.values())
    assert len(results["recipes"][0]["by_env_steps"]["x"]) > 3
    config = json.loads((folder / "c51" / "seed1" / "config.json").read_text())
    assert config == ComparisonPlan.read(folder).recipes["c51"], (
        "an ordinary run directory, trained from the plan"
    )
    assert not list(folder.rglob("*.stderr"))
