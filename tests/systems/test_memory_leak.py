"""An env that leaks memory: the run says so while it trains, and shows the memory in its metrics."""

import dataclasses
import json
import mmap

import gymnasium
import numpy as np
import pytest

from troop import run_recorder
from troop.api import make_experiment
from troop.core.engine import Until
from troop.logs import process_usage
from troop.logs.memory_growth import MemoryGrowth
from troop.logs.process_usage import memory_bytes

LEAKED = []


class LeakyEnv(gymnasium.Env):
    """Keeps a megabyte of every step."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        LEAKED.append(mmap.mmap(-1, 1_000_000))  # not from the heap, which may have free memory
        np.frombuffer(LEAKED[-1], np.uint8)[:] = 1
        return np.zeros(2, np.float32), 0.0, False, False, {}


@pytest.mark.reliability("S6")
def test_env_that_leaks_is_reported(tmp_path, monkeypatch):
    gymnasium.register("Leaky-v0", LeakyEnv, max_episode_steps=20)
    now, notes = [0.0], []

    def clock():
        now[0] += 1.0  # each line of metrics is a second apart
        return now[0]

    # Tests before this one may have left a large process, of which a tenth is more than the env leaks.
    before = memory_bytes() - 50_000_000
    monkeypatch.setattr(process_usage, "memory_bytes", lambda: memory_bytes() - before)
    monkeypatch.setattr(run_recorder, "MemoryGrowth", lambda: MemoryGrowth(2.0, 20e6, clock))
    monkeypatch.setattr(run_recorder.RunRecorder, "note", lambda self, text: notes.append(text))
    made = make_experiment("dqn", "gym:Leaky-v0", envs=1, engine="inline")
    made = dataclasses.replace(
        made,
        until=Until(env_steps=250),
        evaluation=dataclasses.replace(made.evaluation, episodes=1, env_steps=10_000),
        engine=dataclasses.replace(made.engine, threads=1, log_s=1e-9),
    )
    try:
        made.run(tmp_path / "run", quiet=True)
    finally:
        LEAKED.clear()
        gymnasium.registry.pop("Leaky-v0")
    assert any("the memory of this process has grown" in note for note in notes)
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    memory = [row["process/memory_bytes"] for row in rows if "process/memory_bytes" in row]
    assert max(memory) - min(memory) > 150e6
