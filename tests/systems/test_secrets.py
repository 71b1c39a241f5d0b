"""Tokens and keys of the user are in no file and no output of a run."""

import os
import subprocess
import sys

import pytest

from troop.engines.ray import authentication

CANARY = "7f3a9c-canary-of-a-secret"
VARIABLES = ("RAY_AUTH_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN")
FAILING_ENV = """
import gymnasium
class Failing(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}
    def step(self, action):
        raise RuntimeError("the simulator is gone")
"""


@pytest.mark.reliability("X12")
@pytest.mark.parametrize("env, code", [("CartPole-v1", 0), ("my_env:Failing", 4)])
def test_secrets_of_the_environment_are_in_no_file_and_no_output(env, code, tmp_path):
    (tmp_path / "my_env.py").write_text(FAILING_ENV)
    flags = ["--envs", "2", "--env-steps", "40", "--evaluation.episodes", "2", "--run", "run"]
    done = subprocess.run(
        [sys.executable, "-m", "troop", "train", "dqn", "--env", env, *flags],
        cwd=tmp_path,
        env=os.environ | dict.fromkeys(VARIABLES, CANARY),
        capture_output=True,
        timeout=240,
    )
    assert done.returncode == code, done.stderr.decode()
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 4
    for text in (done.stdout, done.stderr, *(path.read_bytes() for path in files)):
        assert CANARY.encode() not in text


@pytest.mark.reliability("X12")
def test_token_of_a_local_ray_is_a_file_of_this_user_and_not_in_the_environment(monkeypatch, tmp_path):
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    authentication._private_token.cache_clear()
    authentication.configure_authentication("local", insecure=False)
    try:
        path = authentication._private_token()
        token = path.read_text()
        assert len(token) == 64 and os.environ["RAY_AUTH_TOKEN_PATH"] == str(path)
        assert path.stat().st_mode & 0o077 == 0 and path.parent.stat().st_mode & 0o077 == 0
        assert not [name for name, value in os.environ.items() if token in value]
    finally:
        authentication._private_token.cache_clear()
