"""Gymnasium envs in worker processes: one that hangs, raises or dies is replaced alone."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch

from troop.core.env_calls import EnvFailure
from troop.core.errors import EnvFault
from troop.envs import Gymnasium
from troop.envs.gymnasium import workers

pytestmark = pytest.mark.timeout(200)
ENV = """
import os, sys, time
import gymnasium, numpy as np
from gymnasium import spaces

class Fragile(gymnasium.Env):
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)
    def __init__(self, fault="raise"):
        self.fault = fault
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.t += 1
        if action[0] > 0.9:
            self.fail()
        return np.full(2, self.t, np.float32), 1.0, False, False, {}
    def fail(self):
        if self.fault == "hang":
            time.sleep(1000)
        if self.fault == "exit":
            sys.exit(1)
        if self.fault == "interrupt":
            raise KeyboardInterrupt
        if self.fault == "abort":
            os.abort()
        raise ValueError("the motor is hot")

class Answers(Fragile):
    observation_space = spaces.Dict({"pos": spaces.Box(-1, 1, (2,), np.float32),
                                     "cam": spaces.Box(0, 255, (8, 8, 3), np.uint8)})
    def obs(self, **changes):
        return {"pos": np.zeros(2), "cam": np.zeros((8, 8, 3), np.uint8)} | changes
    def reset(self, seed=None, options=None):
        return (self.obs(), {}) if self.fault != "reset" else self.obs()
    def step(self, action):
        obs, end = self.obs(), False
        if self.fault == "none":
            obs = None
        if self.fault == "shape":
            obs = self.obs(pos=np.zeros(3))
        if self.fault == "dtype":
            obs = self.obs(cam=np.zeros((8, 8, 3)))
        if self.fault == "key":
            del obs["pos"]
        if self.fault == "text":
            obs = self.obs(pos=None)
        reward = {"reward": None, "rewards": np.ones(2)}.get(self.fault, 1)
        if self.fault == "flag":
            end = "no"
        return (obs, reward, end, False, {}) if self.fault != "tuple" else (obs, reward, end, {})
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "fragile.py").write_text(ENV)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("fragile", None)
    while workers.WorkerProcess.idle:
        workers.WorkerProcess.idle.pop().kill()


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("raise", "raised ValueError: the motor is hot (fragile.py, line 29)"),
        ("interrupt", "raised KeyboardInterrupt: no message (fragile.py, line 26)"),
        ("exit", "raised SystemExit: 1 (fragile.py, line 24)"),
        ("hang", "did not return within 5 s; it was at fragile.py, line 22"),
        ("abort", "ended its process (signal 6)"),
    ],
)
def test_a_worker_that_fails_is_replaced_alone(fault, text):
    env = Gymnasium("fragile:Fragile", 3, workers=3, settings=(("fault", fault),), worker_limit_s=5).make(0)
    env.reset(0)
    for _ in range(2):
        assert env.step(torch.zeros(3, 1)).valid.all()
    step = env.step(torch.tensor([[0.0], [1.0], [0.0]]))
    assert step.valid.tolist() == [True, False, True] and step.faults == 1
    assert step.reward.tolist() == [1, 0, 1] and not step.terminated.any() and not step.truncated.any()
    assert step.obs["obs"][:, 0].tolist() == [3, 0, 3]
    reason = f"step() of env 'fragile:Fragile' {text}"
    assert env.notes == [f"{reason}; the worker of env 1 was replaced, and new episodes began there"]
    step = env.step(torch.zeros(3, 1))
    assert step.valid.all() and step.faults == 0 and step.obs["obs"][:, 0].tolist() == [4, 1, 4]
    env.close()


def test_workers_that_hang_together_share_one_limit(monkeypatch):
    allowed, receive = [], workers.WorkerProcess.receive

    def recorded(self, seconds, limit_s=None):
        allowed.append(seconds)
        return receive(self, seconds, limit_s)

    env = Gymnasium("fragile:Fragile", 3, workers=3, settings=(("fault", "hang"),), worker_limit_s=8).make(0)
    env.reset(0)
    monkeypatch.setattr(workers.WorkerProcess, "receive", recorded)
    monkeypatch.setattr(workers, "REPLY_GRACE_S", 0.5)
    assert env.step(torch.ones(3, 1)).faults == 3
    waits = [seconds for seconds in allowed if seconds < 7.999]  # not those of the new processes
    assert len(waits) >= 2 and max(waits[-2:]) <= 0.5
    assert all("did not return within 8 s; it was at fragile.py, line 22" in note for note in env.notes)
    env.close()


def test_a_worker_that_fails_again_and_again_ends_the_run(monkeypatch):
    monkeypatch.setattr(workers, "MAX_REPLACEMENTS", 2)
    env = Gymnasium("fragile:Fragile", 2, workers=1).make(0)
    env.reset(0)
    for _ in range(2):
        assert env.step(torch.ones(2, 1)).faults == 2
    with pytest.raises(
        EnvFailure, match=r"raised ValueError: the motor is hot \(fragile.py, line 29\).*2 times"
    ):
        env.step(torch.ones(2, 1))
    env.close()


def test_a_worker_exits_with_its_parent_even_while_its_env_hangs(tmp_path):
    script = """
        import torch
        from troop.envs import Gymnasium

        env = Gymnasium("fragile:Fragile", 1, workers=1, settings=(("fault", "hang"),)).make(0)
        env.reset(0)
        env.send(torch.ones(1, 1))
        print(env.env.env.vector._shares[0].process.process.pid, flush=True)
        env.recv()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    pid = int(process.stdout.readline())
    os.kill(pid, 0)  # it lives
    process.send_signal(signal.SIGKILL)
    process.communicate()
    while True:  # pytest's limit ends a worker that stays
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("none", "step() of env 'fragile:Answers' returned obs as NoneType None; its space declares a dict."),
        ("shape", "obs['pos'] as float64 (3,); its space declares float32 (2,)."),
        ("dtype", "obs['cam'] as float64 (8, 8, 3); its space declares uint8 (8, 8, 3)."),
        ("key", "returned obs without 'pos', which its space declares."),
        ("text", "returned obs['pos'] as NoneType None; its space declares float32 (2,)."),
        ("reward", "returned the reward NoneType None; it must be one number."),
        ("rewards", "returned the reward float64 (2,); it must be one number."),
        ("flag", "returned terminated = str 'no'; it must be a bool."),
        ("tuple", "it must return (observation, reward, terminated, truncated, info)."),
        ("reset", "it must return (observation, info)."),
    ],
)
def test_what_an_env_returns_is_checked_against_its_spaces(fault, text):
    config = Gymnasium("fragile:Answers", 2, workers=int(fault == "shape"), settings=(("fault", fault),))
    env = config.make(0)
    with pytest.raises(EnvFault) as error:
        env.reset(0)
        env.step(torch.zeros(2, 1))
    assert text in str(error.value)
    env.close()
