"""The system clock jumps by days during a run: rates stay positive, and checkpoints are ordered by step."""

import dataclasses
import itertools
import json
import time

import pytest

from troop.api import make_experiment
from troop.core.engine import Until
from troop.runs.checkpoint import load_newest

DAY = 86_400.0


@pytest.mark.reliability("F7")
def test_run_ignores_jumps_of_the_system_clock(tmp_path, monkeypatch):
    jumps = itertools.cycle([0.0, -DAY, 3 * DAY, -7 * DAY])
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    made = make_experiment("dqn", "CartPole-v1", engine="inline")
    made = dataclasses.replace(
        made,
        until=Until(env_steps=400),
        evaluation=dataclasses.replace(made.evaluation, episodes=2, env_steps=100),
        engine=dataclasses.replace(made.engine, threads=1, log_s=0.01, checkpoint_s=0.02),
    )
    result = made.run(tmp_path / "run", quiet=True)
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert len(rows) > 3 and result.counters.wall_s < 600
    for name in ("wall_s", "env_steps", "updates"):
        assert all(b[name] >= a[name] for a, b in itertools.pairwise(rows))
    assert all(value >= 0 for row in rows for name, value in row.items() if name.startswith("rate/"))
    assert load_newest(tmp_path / "run/checkpoints").info["env_steps"] == result.counters.env_steps
