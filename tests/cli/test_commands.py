"""The commands as a user runs them: real processes, files and envs."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch

from troop.api import load_policy
from troop.cli.main import VERBS, run

TROOP = [sys.executable, "-m", "troop"]
SMALL = ["--env", "Pendulum-v1", "--envs", "8", "--episodes", "4", "--replay-capacity", "20000"]


def troop(*argv, cwd, code=0):
    """Run the command in a process of its own and return its output."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*TROOP, *map(str, argv)], cwd=cwd, env=env, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout


def run_here(*argv, code=0):
    """Run the command in this process, which saves importing torch again."""
    assert run([str(word) for word in argv]) == code


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    troop("train", "fasttd3", *SMALL, "--env-steps", 800, "--run", "one", cwd=folder)
    return folder


def test_help_imports_no_heavy_library(tmp_path):
    code = "import sys; from troop.cli.main import run; run(['--help']); run(['train', '--help'])"
    code += (
        "; print([m for m in ('torch', 'tyro', 'rich', 'gymnasium', 'envpool', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().endswith("[]")
    assert "troop train" in done.stdout


def test_help_of_a_recipe_shows_its_settings(tmp_path):
    text = troop("train", "fasttd3", "--help", cwd=tmp_path)
    for flag in (
        "--gamma FLOAT",
        "--updates-per-step FLOAT",
        "--episodes INT",
        "--engine.threads INT",
        "--minutes M",
    ):
        assert flag in text


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb_has_an_example(verb, capsys):
    try:
        assert run([verb, "--help"]) == 0
    except SystemExit as stop:
        assert stop.code == 0
    text = capsys.readouterr().out
    assert f"\n  troop {verb}" in text or verb == "recipes"
    assert max(map(len, text.splitlines())) <= 112


def test_run_writes_summary_metrics_config_curve_and_checkpoints(trained):
    run = trained / "one"
    summary = json.loads((run / "summary.json").read_text())
    fields = "status return_mean return_std episodes env_steps updates wall_s env_steps_per_s updates_per_s"
    assert set(fields.split()) | {"target_reached_s", "restarts"} <= set(summary)
    assert summary["status"] == "done" and summary["env_steps"] >= 800 and summary["episodes"] == 4
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(list(line)[:3] == ["wall_s", "env_steps", "updates"] for line in lines)
    assert any("loss/critic" in line for line in lines) and any("eval/return_mean" in line for line in lines)
    config = json.loads((run / "config.json").read_text())
    assert config["env"]["id"] == "Pendulum-v1" and config["algorithm"]["kind"] == "TD3Config"
    assert (run / "curve.png").stat().st_size > 5_000
    assert list((run / "checkpoints").glob("ckpt-*/manifest.json")) and list(run.glob("events.out.*"))


def test_config_json_round_trip(trained):
    from troop.experiment import Experiment

    config = json.loads((trained / "one" / "config.json").read_text())
    assert Experiment.from_dict(config).to_dict() == config


def test_eval_is_repeatable_and_the_policy_can_be_called_from_python(trained, capsys):
    outputs = []
    for _ in range(2):
        run_here("eval", trained / "one", "--episodes", 5, "--json")
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert json.loads(outputs[0])["episodes"] == 5
    policy = load_policy(trained / "one")
    obs = np.zeros((3, 3), np.float32)
    action = policy(obs)
    assert isinstance(action, np.ndarray) and action.shape == (3, 1) and np.abs(action).max() <= 2.0
    assert isinstance(policy(torch.zeros(3)), torch.Tensor) and policy(torch.zeros(3)).shape == (1,)
    assert np.allclose(policy(obs)[0], 2 * policy(obs, scaled=False)[0])


def test_directory_of_another_run_is_rejected_and_not_changed(trained):
    before = (trained / "one" / "config.json").read_bytes()
    run_here("train", "fasttd3", *SMALL, "--env-steps", 100, "--run", trained / "one", code=2)
    assert (trained / "one" / "config.json").read_bytes() == before


def test_resume_with_another_number_of_envs_reports_dropped_rows(tmp_path, capsys):
    run_here("train", "fasttd3", *SMALL, "--env-steps", 400, "--run", tmp_path / "r")
    run_here("resume", tmp_path / "r", "--env-steps", 600, "--envs", 4)
    assert "dropped" in capsys.readouterr().out
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["env_steps"] >= 600


def test_resumed_run_equals_an_uninterrupted_one(tmp_path):
    from troop.runs.checkpoint import load_newest

    run_here("train", "fasttd3", *SMALL, "--env-steps", 1000, "--run", tmp_path / "full")
    run_here("train", "fasttd3", *SMALL, "--env-steps", 500, "--run", tmp_path / "half")
    troop("resume", "half", "--env-steps", 1000, cwd=tmp_path)
    full, half = (load_newest(tmp_path / name / "checkpoints") for name in ("full", "half"))
    assert full.info["env_steps"] == half.info["env_steps"]
    assert full.info["counters"]["updates"] == half.info["counters"]["updates"]
    assert_equal(full.state, half.state, "state")


def assert_equal(a, b, path):
    if isinstance(a, dict):
        assert set(a) == set(b), path
        for key in a:
            assert_equal(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b), path
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_equal(x, y, f"{path}[{i}]")
    else:
        assert a == b, path


def test_ctrl_c_saves_and_the_run_can_be_resumed(tmp_path):
    argv = [*TROOP, "train", "fasttd3", *SMALL, "--minutes", "5", "--run", "r"]
    child = subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    metrics = tmp_path / "r" / "metrics.jsonl"
    while time.monotonic() < deadline and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    output, errors = child.communicate(timeout=60)
    assert child.returncode == 3, errors
    assert "troop resume r" in output and "Traceback" not in errors
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["status"] == "stopped"
    run_here("resume", tmp_path / "r", "--env-steps", summary["env_steps"] + 100)


def test_env_of_a_user_module_is_trained(tmp_path):
    (tmp_path / "my_envs.py").write_text(
        textwrap.dedent("""
            import gymnasium as gym
            import numpy as np

            class Reach(gym.Env):
                observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
                action_space = gym.spaces.Box(-3, 3, (1,), np.float32)
                def reset(self, *, seed=None, options=None):
                    super().reset(seed=seed)
                    self.x = self.np_random.uniform(-1, 1, 2).astype(np.float32)
                    return self.x, {}
                def step(self, action):
                    return self.x, -float(np.abs(action[0] / 3 - self.x[0])), False, False, {}

            gym.register("Reach-v0", Reach, max_episode_steps=20)
        """)
    )
    argv = ["--env", "my_envs:Reach-v0", "--envs", 4, "--env-steps", 400, "--run", "a"]
    troop("train", "fasttd3", *argv, cwd=tmp_path)
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["return_mean"] is not None


def test_target_ends_the_run_and_its_time_is_recorded(tmp_path):
    argv = ["--target", -100000, "--evaluation.env-steps", 200, "--env-steps", 5000]
    run_here("train", "fasttd3", *SMALL, *argv, "--run", tmp_path / "r")
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["target_reached_s"] is not None and summary["env_steps"] < 1000
