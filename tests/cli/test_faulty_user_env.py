"""`troop train` with an env of a user that hangs, raises or exits, and starts that end early."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import troop as troop_package
from troop.cli.main import run as troop
from troop.runs.checkpoint import load_part

pytestmark = pytest.mark.timeout(300)
SMALL = [
    "--envs",
    "2",
    "--no-compile",
    "--evaluation.episodes",
    "1",
    "--seconds",
    "1000",
    "--engine.threads",
    "1",
]
TRAIN = ["train", "td3", *SMALL]


@pytest.fixture
def user_env(tmp_path, monkeypatch):
    """A module `arm` in the working directory; its envs fail in step 60, once: a file `fixed` is written."""
    (tmp_path / "arm.py").write_text(
        textwrap.dedent(
            """
            import pathlib, sys, time
            import gymnasium, numpy as np
            from gymnasium import spaces

            class Arm(gymnasium.Env):
                observation_space = spaces.Box(-1, 1, (2,), np.float32)
                action_space = spaces.Box(-1, 1, (1,), np.float32)
                def reset(self, seed=None, options=None):
                    super().reset(seed=seed)
                    self.t = 0
                    return np.zeros(2, np.float32), {}
                def step(self, action):
                    self.t += 1
                    if self.t == 60 and not pathlib.Path("fixed").exists():
                        pathlib.Path("fixed").touch()
                        self.fail()
                    return np.full(2, self.t / 100, np.float32), 1.0, False, self.t == 100, {}

            class Hangs(Arm):
                def fail(self):
                    time.sleep(1000)

            class HangsInC(Arm):
                def fail(self):
                    import hashlib
                    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)

            class Raises(Arm):
                def fail(self):
                    raise ValueError("the motor is hot")

            class Exits(Arm):
                def fail(self):
                    sys.exit(7)
            """
        )
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("arm", None)


def launch(*args):
    return subprocess.Popen(
        [sys.executable, "-m", "troop", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(path, process):
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def summary(path):
    return json.loads((path / "summary.json").read_text())


@pytest.mark.parametrize("env", ["Hangs", "HangsInC"])
@pytest.mark.reliability("S1", "T1")
def test_ctrl_c_saves_a_run_whose_env_hangs(user_env, env):
    process = launch(*TRAIN, "--env", f"arm:{env}", "--env-steps", "10000", "--run", "run")
    wait_for(user_env / "fixed", process)
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate()
    assert process.returncode == 3
    assert "continue with: troop resume run" in (output if env == "Hangs" else errors)
    assert len(errors.splitlines()) == (env == "HangsInC")
    assert summary(user_env / "run")["status"] == "stopped"
    saved = load_part(user_env / "run" / "checkpoints", "policy")
    assert saved.info["env_steps"] == summary(user_env / "run")["env_steps"] == 2 * 59
    assert troop(["resume", "run", "--env-steps", "300", "--allow", "arm"]) == 0


@pytest.mark.reliability("T2")
def test_two_ctrl_c_end_an_env_that_hangs_in_c_at_once(user_env):
    process = launch(*TRAIN, "--env", "arm:HangsInC", "--env-steps", "10000", "--run", "run")
    wait_for(user_env / "fixed", process)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.5)
    assert process.wait(timeout=5) == 130
    assert summary(user_env / "run")["status"] == "stopped"


@pytest.mark.parametrize(
    ("env", "text"), [("Raises", "ValueError: the motor is hot"), ("Exits", "SystemExit: 7")]
)
@pytest.mark.reliability("C5", "K10")
def test_a_run_whose_env_fails_is_saved_and_can_be_resumed(user_env, capsys, env, text):
    assert troop([*TRAIN, "--env", f"arm:{env}", "--env-steps", "10000", "--run", "run"]) == 4
    line = {"Raises": 31, "Exits": 35}[env]
    expected = f"troop: step() of env 'arm:{env}' raised {text} (arm.py, line {line}); the traceback is in"
    assert capsys.readouterr().err.startswith(expected)
    assert summary(user_env / "run")["status"] == "failed"
    assert load_part(user_env / "run" / "checkpoints", "policy").info["env_steps"] == 2 * 59
    assert troop(["resume", "run", "--env-steps", "300", "--allow", "arm"]) == 0


def test_a_directory_whose_start_failed_can_be_used_and_resumed(user_env, capsys):
    """A replay that is too large fails after the directory was created."""
    train = [*TRAIN, "--env", "arm:Raises", "--env-steps", "100", "--run", "run", "--replay-capacity"]
    (user_env / "fixed").touch()
    assert troop([*train, str(10**13)]) == 5
    assert summary(user_env / "run")["status"] == "failed"
    assert (
        troop(["resume", "run", "--allow", "arm"]) == 5
    )  # with the same replay; it does not say that there is no run
    assert "ended before its first checkpoint" in capsys.readouterr().out
    assert troop([*train, "100000"]) == 0


@pytest.mark.parametrize(
    ("number", "moment"),
    [(signal.SIGINT, "import"), (signal.SIGINT, "config.json"),
     (signal.SIGHUP, "summary.json"), (signal.SIGUSR1, "summary.json")],
)  # fmt: skip
@pytest.mark.reliability("T3")
def test_a_signal_during_the_start_ends_in_one_line_without_a_traceback(
    tmp_path, monkeypatch, number, moment
):
    monkeypatch.chdir(tmp_path)
    size = ["--envs", "2", "--system.actors", "2", "--minutes", "20"]
    process = launch("train", "apex-dqn", "--env", "toy:Chain", "--env.discrete", *size, "--run", "run")
    if moment == "import":
        time.sleep(0.6)
    else:
        wait_for(tmp_path / "run" / moment, process)
    os.killpg(process.pid, number)
    output, errors = process.communicate()
    assert process.returncode in (3, 130), (output, errors)
    assert errors in ("", "troop: interrupted.\n")
    assert "Traceback" not in output and "died" not in output
    if process.returncode == 3:
        assert summary(tmp_path / "run")["status"] == "stopped"


@pytest.mark.reliability("T3")
@pytest.mark.parametrize("verb", ["train", "eval"])
def test_a_signal_during_the_first_imports_ends_in_one_line(verb):
    """The signal arrives when the command imports its first module that takes time."""
    code = f"""
import os, signal, sys
from troop.cli.command import main
slow = {{"typing", "re", "dataclasses", "inspect", "pathlib"}} & sys.modules.keys()
class Interrupting:
    def find_spec(name, path=None, target=None):
        if name == "troop.cli.main":
            print(slow, flush=True)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting)
main([{verb!r}, "x"])
"""
    # Without site-packages, whose .pth files may import anything.
    paths = {"PYTHONPATH": str(Path(troop_package.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, env=os.environ | paths
    )
    assert (done.returncode, done.stderr, done.stdout) == (130, "troop: interrupted.\n", "set()\n")
