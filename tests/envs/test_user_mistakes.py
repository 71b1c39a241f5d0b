"""Mistakes in the env of a user: the message names the env, the value and what is expected."""

import multiprocessing
import sys
import textwrap

import pytest
import torch

import troop
from troop.core.errors import BadInput, EnvFault
from troop.envs import resolve

MODULE = """
import sys
import gymnasium
import numpy as np
from gymnasium import spaces


class Good(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)
    values = np.zeros(3, np.float32), 0.0, False, False, {}

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return self.values


class NoSpaces(gymnasium.Env):
    reset, step = Good.reset, Good.step


class WrongSpace(Good):
    action_space = 2


class NoInfo(Good):
    values = np.zeros(3, np.float32), 0.0, False, False, None


class Uneven(Good):
    values = [[1], [1, 2], 3], 0.0, False, False, {}


class UnevenReward(Good):
    values = np.zeros(3, np.float32), [[1], [1, 2]], False, False, {}


class NoResetInfo(Good):
    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), None


class Exits(Good):
    def __init__(self):
        sys.exit(0)


class CloseFails(Good):
    def close(self):
        raise RuntimeError("no window")
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a file in the working directory that defines the envs."""
    (tmp_path / "mistaken.py").write_text(textwrap.dedent(MODULE))
    (tmp_path / "exiting.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "mistaken"
    sys.modules.pop("mistaken", None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mistaken:NoSpaces", r"observation_space of env 'mistaken:NoSpaces' is None; set it to a space"),
        ("mistaken:WrongSpace", r"action_space of env 'mistaken:WrongSpace' is 2; set it to a space"),
        ("mistaken:Exits", r"Env 'mistaken:Exits' cannot be built: SystemExit: 0 \(.*mistaken.py, line"),
        ("exiting:Env", r"Module 'exiting' cannot be imported: SystemExit: 0 \(.*exiting.py, line 2"),
    ],
)
def test_env_that_cannot_be_built(module, name, message):
    with pytest.raises(BadInput, match=message):
        _ = resolve(name).spec


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoInfo", r"step\(\) of env 'mistaken:NoInfo' returned info = NoneType None; it must be a dict"),
        ("NoResetInfo", r"reset\(\) of env 'mistaken:NoResetInfo' returned info = NoneType None"),
        ("Uneven", r"returned obs as list \[\[1\], \[1, 2\], 3\]; its space declares float32 \(3,\)"),
        ("UnevenReward", r"returned the reward list \[\[1\], \[1, 2\]\]; it must be one number"),
    ],
)
@pytest.mark.reliability("N4")
def test_value_that_the_spaces_exclude(module, name, message):
    env = resolve(f"{module}:{name}", 1).make(0)
    with pytest.raises(EnvFault, match=message):
        env.reset(seed=0)
        env.step(torch.zeros(1, 1))


def test_script_that_trains_when_it_is_imported_is_refused(module, tmp_path, monkeypatch):
    """Each process of a run imports the script of its env: without a guard it would start another run."""
    (tmp_path / "script.py").write_text(
        "import troop\nfrom mistaken import Good\n"
        "troop.train('sac', Good, env_steps=10, run='run', quiet=True)\n"
    )
    with pytest.raises(BadInput, match=r"Module 'script' starts a run when it is imported; put this call"):
        resolve("./script.py:Good")
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(BadInput, match="The script starts a run when it is imported"):
        troop.train("sac", "mistaken:Good", env_steps=10, run="run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_env_whose_close_fails_can_be_used(module):
    assert resolve(f"{module}:CloseFails").spec.envs == 8
