"""LastStepEnv: adds the last action and reward to the observations, as the networks of IMPALA read them."""

from __future__ import annotations

import dataclasses

import numpy as np

from troop.core.env import Continuous, Discrete, EnvSpec, Field
from troop.core.numpy_env import NumPyEnv, NumPyObs, NumPyStep

LAST_ACTION, LAST_REWARD = "last_action", "last_reward"


def last_step_spec(spec: EnvSpec) -> EnvSpec:
    """Return the spec with both observations: the action as one-hots or as it is, the reward clipped."""
    size = spec.action.size if isinstance(spec.action, Continuous) else sum(one_hot_sizes(spec.action))
    extra = {LAST_ACTION: Field((size,)), LAST_REWARD: Field((1,))}
    return dataclasses.replace(spec, obs=spec.obs | extra)


def one_hot_sizes(action: Discrete) -> tuple[int, ...]:
    """Return the widths of the one-hots of an action: one for each of several discrete actions."""
    return action.factors or (action.choices,)


def without_last_step(spec: EnvSpec) -> EnvSpec:
    """Return the spec of what the env itself returns."""
    obs = {name: field for name, field in spec.obs.items() if name not in (LAST_ACTION, LAST_REWARD)}
    return dataclasses.replace(spec, obs=obs)


def last_step_rows(action: np.ndarray, reward: np.ndarray, kind: Continuous | Discrete) -> NumPyObs:
    """Return both observations [N, ...] of actions [N, ...] and rewards [N], which are clipped to [-1, 1]."""
    if isinstance(kind, Continuous):
        rows = action.clip(-1, 1).astype(np.float32)
    else:
        sizes = one_hot_sizes(kind)
        parts = zip(np.unravel_index(action, sizes), sizes, strict=True)
        rows = np.concatenate([part[:, None] == np.arange(size) for part, size in parts], 1, dtype=np.float32)
    return {LAST_ACTION: rows, LAST_REWARD: reward.clip(-1, 1).astype(np.float32)[:, None]}


class LastStepEnv:
    """A NumPyEnv whose observations contain the action and reward that led to them; 0 at episode starts."""

    def __init__(self, env: NumPyEnv) -> None:
        self.env, self.spec = env, last_step_spec(env.spec)
        self.notes: list[str] = getattr(env, "notes", [])
        self._action: np.ndarray | None = None

    def reset(self, seed: int) -> NumPyStep:
        """Start a new episode in every env; all rows have `valid` False."""
        step = self.env.reset(seed)
        obs = step.obs | self._zeros(len(step.reward))
        return dataclasses.replace(step, obs=obs, next_obs=obs)

    def send(self, action: np.ndarray) -> None:
        """Start a step."""
        self._action = action
        self.env.send(action)

    def recv(self) -> NumPyStep:
        """Return the result of the last `send`."""
        step = self.env.recv()
        assert self._action is not None
        rows = last_step_rows(self._action, step.reward, self.spec.action)
        started = step.started[:, None]
        obs = step.obs | {name: np.where(started, np.float32(0), x) for name, x in rows.items()}
        next_obs = obs if step.next_obs is step.obs else step.next_obs | rows
        return dataclasses.replace(step, obs=obs, next_obs=next_obs)

    def step(self, action: np.ndarray) -> NumPyStep:
        """`send` followed by `recv`."""
        self.send(action)
        return self.recv()

    def restart(self, rows: np.ndarray) -> NumPyObs:
        """Restart the envs `rows` and return their first observations."""
        return self.env.restart(rows) | self._zeros(len(rows))

    def close(self) -> None:
        """Close the wrapped env."""
        self.env.close()

    def _zeros(self, rows: int) -> NumPyObs:
        names = (LAST_ACTION, LAST_REWARD)
        return {name: np.zeros((rows, *self.spec.obs[name].shape), np.float32) for name in names}
