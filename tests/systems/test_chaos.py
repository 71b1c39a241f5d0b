"""Hosts are killed at random, with a fixed seed: the run continues, and no process is left behind."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from host_killer import host_processes
from test_deaths import TRACED_APEX, run_with_kills
from traced_env import check_replay_rows, steps_taken

KILLS, SEED, THRESHOLD = 50, 4, 475.0
RECIPES = {"apex-dqn": ["--env", "CartPole-v1"], "seed-vtrace": ["--env", "CartPole-v1", "--envs", "8"]}
TRAIN = ["--minutes", "30", "--run", "run", "--seed", "3"]
FLAGS = ["--engine.restarts", "1000", "--engine.checkpoint-s", "5", "--evaluation.seconds", "5"]


@pytest.mark.reliability("K11")
def test_rows_stay_intact_when_random_pairs_of_hosts_are_killed(tmp_path):
    random_hosts = random.Random(SEED)
    names = ("actor0", "actor1", "replay", "learner", "weights")
    plan = [tuple(random_hosts.sample(names, 2)) for _ in range(3)]
    observer, result, _ = run_with_kills(TRACED_APEX, tmp_path, plan, steps=60, updates=5)
    assert result.status == "stopped" and result.counters.restarts >= 6
    assert not host_processes(os.getpid())
    stored = check_replay_rows(observer.state["replay.replay"], envs=2)
    assert set(stored) <= set(steps_taken(tmp_path)) and sum(map(len, stored.values())) > 50


@pytest.mark.timeout(3000)
@pytest.mark.long
@pytest.mark.reliability("K11")
@pytest.mark.parametrize("recipe", RECIPES)
def test_cartpole_is_learned_despite_fifty_kills(recipe, tmp_path):
    pytest.importorskip("envpool")
    output = tmp_path / "output"
    process = subprocess.Popen(
        [sys.executable, "-m", "troop", "train", recipe, *RECIPES[recipe], *TRAIN, *FLAGS],
        cwd=tmp_path, start_new_session=True,
        stdout=output.open("w"), stderr=subprocess.STDOUT,
    )  # fmt: skip
    killed, pids, random_hosts = [], set(), random.Random(SEED)
    try:
        while not evaluation_returns(tmp_path):  # after the first evaluation all hosts work
            assert process.poll() is None, output.read_text()
            time.sleep(0.5)
        while len(killed) < KILLS:
            assert process.poll() is None, output.read_text()
            hosts = host_processes(process.pid)
            name = random_hosts.choice(sorted(hosts))
            pids |= set(hosts.values())
            os.kill(hosts[name], signal.SIGKILL)
            killed.append(name)
            time.sleep(random_hosts.uniform(0.5, 3.0))
        before = len(evaluation_returns(tmp_path))
        while max(evaluation_returns(tmp_path)[before:], default=0.0) < THRESHOLD:
            assert process.poll() is None, output.read_text()
            time.sleep(1)
        pids |= set(host_processes(process.pid).values())
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(120) == 3
    finally:
        process.kill()
        process.wait()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    print(killed, {name: summary[name] for name in ("restarts", "env_steps", "wall_s")})
    assert summary["restarts"] >= 0.9 * KILLS  # two kills at once may count as one restart
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def evaluation_returns(directory):
    """Return the mean returns of all evaluations so far."""
    metrics = directory / "run" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
    values = (json.loads(line).get("eval/return_mean") for line in lines if line.endswith("\n"))
    return [value for value in values if value is not None]
