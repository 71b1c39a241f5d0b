"""Chaos: hosts of a run are killed at random, by a seed; it goes on all the same, and nobody stays."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from besieging import hosts
from test_apex import SMALL as APEX
from test_deaths import besieged
from witness import examined, performed

KILLS, SEED, THRESHOLD = 50, 4, 475.0
TRAIN = ["train", "apex-dqn", "--env", "CartPole-v1", "--minutes", "30", "--run", "run", "--seed", "3"]
OFTEN = ["--engine.restarts", "1000", "--engine.checkpoint-s", "5", "--evaluation.seconds", "5"]


def test_pairs_of_hosts_die_at_random_and_rows_stay_whole(tmp_path):
    chosen = random.Random(SEED)
    plan = [tuple(chosen.sample(("actor0", "actor1", "replay", "learner", "weights"), 2)) for _ in range(3)]
    system = dataclasses.replace(APEX, replay_capacity=400_000, samples_per_insert=1.0, overlap=False)
    watch, result, _ = besieged(system, tmp_path, plan, steps=60, updates=5)
    assert result.status == "stopped" and result.counters.restarts >= 6 and not hosts(os.getpid())
    held = examined(watch.state["replay.replay"], envs=2)
    assert set(held) <= set(performed(tmp_path)) and sum(map(len, held.values())) > 50


@pytest.mark.timeout(3000)
@pytest.mark.skipif(not os.environ.get("TROOP_LONG_TESTS"), reason="takes minutes; set TROOP_LONG_TESTS=1")
def test_fifty_kills_do_not_keep_apex_from_balancing_its_pole(tmp_path):
    pytest.importorskip("envpool")
    process = subprocess.Popen(
        [sys.executable, "-m", "troop", *TRAIN, *OFTEN], cwd=tmp_path, start_new_session=True,
        stdout=(tmp_path / "said").open("w"), stderr=subprocess.STDOUT,
    )  # fmt: skip
    killed, seen, chosen = [], set(), random.Random(SEED)
    try:
        while not returns(tmp_path):  # the first evaluation: everybody works
            assert process.poll() is None, (tmp_path / "said").read_text()
            time.sleep(0.5)
        while len(killed) < KILLS:
            assert process.poll() is None, (tmp_path / "said").read_text()
            living = hosts(process.pid)
            name = chosen.choice(sorted(living))
            seen |= set(living.values())
            os.kill(living[name], signal.SIGKILL)
            killed.append(name)
            time.sleep(chosen.uniform(0.5, 3.0))
        before = len(returns(tmp_path))
        while max(returns(tmp_path)[before:], default=0.0) < THRESHOLD:
            assert process.poll() is None, (tmp_path / "said").read_text()
            time.sleep(1)
        seen |= set(hosts(process.pid).values())
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(120) == 3
    finally:
        process.kill()
        process.wait()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    print(killed, {name: summary[name] for name in ("restarts", "env_steps", "wall_s")})
    assert summary["restarts"] >= 0.9 * KILLS  # two deaths at once may be one restart
    assert not [pid for pid in seen if os.path.exists(f"/proc/{pid}")]


def returns(folder):
    """Of all evaluations so far."""
    metrics = folder / "run" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
    found = (json.loads(line).get("eval/return_mean") for line in lines if line.endswith("\n"))
    return [value for value in found if value is not None]
