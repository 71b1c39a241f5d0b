"""The commands as a user runs them: real processes, files and envs."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from troop.api import load_policy
from troop.cli.main import VERBS, run
from troop.envs import EpisodeVideo

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


@pytest.mark.reliability("C3")
def test_help_imports_no_heavy_library(tmp_path):
    code = "import sys; from troop.cli.main import run; run(['--help']); run(['train', '--help'])"
    code += (
        "; print([m for m in ('torch', 'tyro', 'rich', 'gymnasium', 'envpool', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().endswith("[]")
    assert "troop train" in done.stdout


@pytest.mark.parametrize("argv", [["train", "dqn", "--env", "CartPole-v1"], ["resume", "runs/old"]])
@pytest.mark.reliability("C3")
def test_first_frame_of_the_panel_needs_no_heavy_library(argv, tmp_path):
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in ("torch", "numpy", "gymnasium", "tyro"))
    code = f"import sys; {blocked}; from troop.cli.main import run; run({argv!r})"
    reader, terminal = os.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"}
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=terminal, stderr=subprocess.DEVNULL, cwd=tmp_path, env=env
    )
    assert child.wait(timeout=60)  # torch cannot be imported
    os.close(terminal)
    drawn = os.read(reader, 100_000).decode()
    os.close(reader)
    title = "dqn on CartPole-v1" if argv[0] == "train" else "runs/old"
    assert title in drawn and "loading libraries" in drawn
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("loading libraries")  # erased, and the cursor is back


@pytest.mark.reliability("C3")
def test_help_of_a_recipe_imports_nothing_that_only_a_run_needs():
    code = "import sys; from troop.cli.main import run"
    code += "\ntry: run(['train', 'fasttd3', '--help'])\nexcept SystemExit: pass"
    for_runs = ["psutil", "gymnasium", "envpool", "numba", "matplotlib", "tensorboard", "ray", "rich"]
    for_runs += ["troop.run_recorder", "troop.engines.driver", "troop.engines.rpc.client", "torch._dynamo"]
    code += f"\nprint([m for m in {for_runs!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().endswith("[]"), done.stdout[-300:] + done.stderr


@pytest.mark.reliability("C3")
def test_help_neither_collects_garbage_nor_deletes_what_it_imported():
    code = "import atexit, gc, sys; atexit.register(print, 'deleted'); generations = []"
    code += "; gc.callbacks.append(lambda phase, info: generations.append(info['generation']))"
    code += "\nimport os; leave = os._exit"
    code += "\nos._exit = lambda code: (print(len(generations), flush=True), leave(code))"
    code += "\nfrom troop.cli.command import main; generations.clear(); main(['train', 'fasttd3', '--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "--gamma FLOAT" in done.stdout
    assert done.stdout.splitlines()[-1] == "0" and "deleted" not in done.stdout


def test_play_says_when_it_samples_frames(monkeypatch, capsys):
    def record(env, act, *, seed, frames, steps, on_frame):
        on_frame(1, 0)
        return EpisodeVideo(["a frame"] * (1000 // 5), 5 if frames == 240 else 1, 12.5, 1000)

    monkeypatch.setattr(
        "troop.api.load_policy", lambda run, **_: SimpleNamespace(env=None, act=None, checkpoint="7")
    )
    monkeypatch.setattr("troop.envs.record_video", record)
    monkeypatch.setattr("troop.envs.write_video", lambda path, frames, fps: path)
    run_here("play", "runs/first")
    shown = capsys.readouterr().out
    assert "200 frames of 1000 steps, return 12.50" in shown
    assert "one of 5 steps" in shown and "--frames 1200" in shown
    run_here("play", "runs/first", "--frames", "1000")
    assert "one of" not in capsys.readouterr().out


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
    entries = re.split(r"\n│ (?=--)", text)[1:]
    assert len(entries) > 40
    for entry in entries:
        words = " ".join(entry.split("\n╰")[0].replace("│", " ").split())
        assert re.search(r"\. ?(\(|$)", words), f"{words!r} has no sentence"


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb_has_an_example(verb, capsys):
    try:
        assert run([verb, "--help"]) == 0
    except SystemExit as stop:
        assert stop.code == 0
    text = capsys.readouterr().out
    assert f"\n  troop {verb}" in text or verb == "recipes"
    assert max(map(len, text.splitlines())) <= 112


@pytest.mark.reliability("T4")
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


@pytest.mark.reliability("C2")
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


@pytest.mark.reliability("R4")
def test_resume_with_another_number_of_envs_reports_dropped_rows(tmp_path, capsys):
    run_here("train", "fasttd3", *SMALL, "--env-steps", 400, "--run", tmp_path / "r")
    run_here("resume", tmp_path / "r", "--env-steps", 600, "--envs", 4)
    assert "dropped" in capsys.readouterr().out
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["env_steps"] >= 600


# Without these flags the number of updates and the compilation of losses follow measured times.
@pytest.mark.parametrize("flags", [("--deterministic",), ("--no-compile", "--max-updates-per-step", "0")])
@pytest.mark.reliability("R1")
def test_resumed_run_equals_an_uninterrupted_one(tmp_path, flags):
    from troop.runs.checkpoint import load_newest

    small = (*SMALL, *flags)
    run_here("train", "fasttd3", *small, "--env-steps", 1000, "--run", tmp_path / "full")
    run_here("train", "fasttd3", *small, "--env-steps", 500, "--run", tmp_path / "half")
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


@pytest.mark.reliability("T1")
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


@pytest.mark.reliability("T4")
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
