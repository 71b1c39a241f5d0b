"""LastStepEnv: adds the last action and reward to the observations, as the networks of IMPALA read them."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.nn import functional

from troop.core.env import Continuous, Discrete, EnvSpec, Field, Obs, Step, VectorEnv

LAST_ACTION, LAST_REWARD = "last_action", "last_reward"


def with_last_step(spec: EnvSpec) -> EnvSpec:
    """Return the spec with both observations: the action as a one-hot or as it is, the reward clipped."""
    size = spec.action.size if isinstance(spec.action, Continuous) else spec.action.choices
    extra = {LAST_ACTION: Field((size,)), LAST_REWARD: Field((1,))}
    return dataclasses.replace(spec, obs=spec.obs | extra)


def without_last_step(spec: EnvSpec) -> EnvSpec:
    """Return the spec of what the env itself returns."""
    obs = {name: field for name, field in spec.obs.items() if name not in (LAST_ACTION, LAST_REWARD)}
    return dataclasses.replace(spec, obs=obs)


def last_step_rows(action: Tensor, reward: Tensor, kind: Continuous | Discrete) -> Obs:
    """Return both observations [N, ...] of actions [N, ...] and rewards [N], which are clipped to [-1, 1]."""
    if isinstance(kind, Continuous):
        rows = action.float().clamp(-1, 1)
    else:
        rows = functional.one_hot(action, kind.choices).float()
    return {LAST_ACTION: rows, LAST_REWARD: reward.float().clamp(-1, 1).unsqueeze(-1)}


class LastStepEnv:
    """A VectorEnv whose observations contain the action and reward that led to them; 0 at episode starts."""

    def __init__(self, env: VectorEnv) -> None:
        self.env, self.spec = env, with_last_step(env.spec)
        self._action: Tensor | None = None

    def reset(self, seed: int) -> Step:
        """Start a new episode in every env; all rows have `valid` False."""
        step = self.env.reset(seed)
        obs = step.obs | self._zeros(len(step.reward), step.reward.device)
        return dataclasses.replace(step, obs=obs, next_obs=obs)

    def send(self, action: Tensor) -> None:
        """Start a step."""
        self._action = action
        self.env.send(action)

    def recv(self) -> Step:
        """Return the result of the last `send`."""
        step = self.env.recv()
        assert self._action is not None
        rows = last_step_rows(self._action, step.reward, self.spec.action)
        first = {name: x.masked_fill(step.started.unsqueeze(1), 0.0) for name, x in rows.items()}
        obs = step.obs | first
        next_obs = obs if step.next_obs is step.obs else step.next_obs | rows
        return dataclasses.replace(step, obs=obs, next_obs=next_obs)

    def step(self, action: Tensor) -> Step:
        """`send` followed by `recv`."""
        self.send(action)
        return self.recv()

    def restart(self, rows: Tensor) -> Obs:
        """Restart the envs `rows` and return their first observations."""
        return self.env.restart(rows) | self._zeros(len(rows), rows.device)

    def close(self) -> None:
        """Close the wrapped env."""
        self.env.close()

    def _zeros(self, rows: int, device: torch.device) -> Obs:
        names = (LAST_ACTION, LAST_REWARD)
        return {name: torch.zeros(rows, *self.spec.obs[name].shape, device=device) for name in names}
