"""Copies of an env that do not fit the memory are refused before the run starts, with measured numbers."""

import dataclasses
import sys

import pytest

from troop import env_memory
from troop.api import make_experiment
from troop.cli.main import run as troop
from troop.core.errors import SetupProblem
from troop.envs import Gymnasium

MEGABYTES = 40
ENV = f"""
import gymnasium, mmap, numpy as np
from gymnasium import spaces

class Heavy(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)
    def __init__(self):
        self.mesh = mmap.mmap(-1, {MEGABYTES} << 20)  # not from the heap, which may have free memory
        np.frombuffer(self.mesh, np.uint8)[:] = 1
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {{}}
    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, True, {{}}
"""


@pytest.fixture
def heavy(tmp_path, monkeypatch):
    (tmp_path / "heavy.py").write_text(ENV)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Gymnasium("heavy:Heavy", 20)
    sys.modules.pop("heavy", None)


def test_a_copy_is_measured(heavy):
    assert MEGABYTES * 0.9 < env_memory.bytes_per_copy(heavy) / 2**20 < MEGABYTES * 1.3


def test_copies_that_do_not_fit_are_refused_with_numbers(heavy, monkeypatch):
    run = dataclasses.replace(make_experiment("td3", "heavy:Heavy"), env=heavy)
    monkeypatch.setattr(env_memory, "free_memory", lambda: 1 << 30)
    message = r"20 envs for training and \d+ for evaluation need 1\..*MB each, measured\) and 1\.1 GB"
    with pytest.raises(SetupProblem, match=message):
        env_memory.check_env_memory(run)
    monkeypatch.setattr(env_memory, "free_memory", lambda: 2 << 30)
    env_memory.check_env_memory(run)


def test_small_runs_measure_nothing(heavy, monkeypatch):
    def fail(env):
        raise AssertionError

    monkeypatch.setattr(env_memory, "bytes_per_copy", fail)
    monkeypatch.setattr(env_memory, "free_memory", lambda: 64 << 30)
    env_memory.check_env_memory(dataclasses.replace(make_experiment("td3", "heavy:Heavy"), env=heavy))


def test_doctor_prints_the_memory_of_all_copies(heavy, capsys):
    assert troop(["doctor", "--recipe", "td3", "--env", "heavy:Heavy", "--envs", "4"]) == 0
    assert "envs       4 for training and " in capsys.readouterr().out
