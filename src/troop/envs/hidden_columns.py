"""HiddenColumnsEnv: removes columns of the vector `obs`, which makes a task partially observable."""

from __future__ import annotations

import dataclasses

import numpy as np

from troop.core.env import OBS, EnvSpec, Field
from troop.core.errors import BadInput
from troop.core.numpy_env import NumPyEnv, NumPyObs, NumPyStep


def with_hidden_columns(spec: EnvSpec, hide: tuple[int, ...]) -> EnvSpec:
    """Return the spec without the columns `hide` of `obs`. Raises BadInput if `obs` does not have them."""
    if not hide:
        return spec
    field = Field((len(visible_columns(spec, hide)),), spec.obs[OBS].dtype_name)
    return dataclasses.replace(spec, obs=spec.obs | {OBS: field})


def visible_columns(spec: EnvSpec, hide: tuple[int, ...]) -> list[int]:
    """Return the columns of `obs` that remain. Raises BadInput if `hide` names others than it has, or all."""
    shape = spec.obs[OBS].shape
    if len(shape) != 1:
        raise BadInput(f"--env.hide hides columns of a vector; 'obs' of env '{spec.id}' is an image {shape}.")
    missing = [column for column in hide if not 0 <= column < shape[0]]
    if missing:
        raise BadInput(
            f"--env.hide names column {missing[0]}; 'obs' of env '{spec.id}' has columns 0 to {shape[0] - 1}."
        )
    visible = [column for column in range(shape[0]) if column not in hide]
    if not visible:
        raise BadInput(f"--env.hide hides all {shape[0]} columns of 'obs' of env '{spec.id}'; leave one.")
    return visible


class HiddenColumnsEnv:
    """A NumPyEnv without the columns `hide` of `obs`; all other observations are unchanged."""

    def __init__(self, env: NumPyEnv, hide: tuple[int, ...]) -> None:
        self.env, self.spec = env, with_hidden_columns(env.spec, hide)
        self.notes: list[str] = getattr(env, "notes", [])
        self._visible = np.array(visible_columns(env.spec, hide))

    def reset(self, seed: int) -> NumPyStep:
        """Start a new episode in every env; all rows have `valid` False."""
        return self._hide(self.env.reset(seed))

    def send(self, action: np.ndarray) -> None:
        """Start a step."""
        self.env.send(action)

    def recv(self) -> NumPyStep:
        """Return the result of the last `send`."""
        return self._hide(self.env.recv())

    def step(self, action: np.ndarray) -> NumPyStep:
        """`send` followed by `recv`."""
        self.send(action)
        return self.recv()

    def restart(self, rows: np.ndarray) -> NumPyObs:
        """Restart the envs `rows` and return their first observations."""
        return self._select(self.env.restart(rows))

    def close(self) -> None:
        """Close the wrapped env."""
        self.env.close()

    def _hide(self, step: NumPyStep) -> NumPyStep:
        obs = self._select(step.obs)
        next_obs = obs if step.next_obs is step.obs else self._select(step.next_obs)
        return dataclasses.replace(step, obs=obs, next_obs=next_obs)

    def _select(self, obs: NumPyObs) -> NumPyObs:
        return obs | {OBS: np.take(obs[OBS], self._visible, 1)}
