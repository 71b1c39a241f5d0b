"""Signals of a batch system end a data-parallel run within its rollout; it continues where it stopped."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from troop.runs.checkpoint import load_newest

pytestmark = pytest.mark.timeout(300)
# A rollout of 1,000 steps takes 100 s, five times as long as --engine.stop-limit-s.
COMMAND = [
    *("train", "dd-ppo", "--env", "toy:Sleepy", "--env.discrete", "--env.seconds", "0.1", "--envs", "2"),
    *(
        "--rollout-length",
        "1000",
        "--minibatches",
        "2",
        "--evaluation.episodes",
        "2",
        "--minutes",
        "20",
        "--run",
        "run",
    ),
]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signal_within_a_long_rollout_saves_what_was_collected(number, tmp_path):
    run = subprocess.Popen(
        [sys.executable, "-m", "troop", *COMMAND],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics, deadline = tmp_path / "run/metrics.jsonl", time.monotonic() + 120
    while not metrics.exists() or steps_of(metrics) < 20:
        assert run.poll() is None and time.monotonic() < deadline, run.communicate()
        time.sleep(0.1)
    run.send_signal(number)
    began = time.monotonic()
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 3 and "Traceback" not in errors, errors
    assert time.monotonic() - began < 50
    state = load_newest(tmp_path / "run/checkpoints").state
    assert int(state["worker0.version"]) == int(state["worker1.version"]) == 1
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["status"] == "stopped" and summary["env_steps"] >= 20


def steps_of(metrics):
    lines = metrics.read_text().splitlines(keepends=True)
    return max((json.loads(line).get("env_steps", 0) for line in lines if line[-1] == "\n"), default=0)
