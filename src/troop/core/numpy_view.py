"""Envs of any config as NumPy envs: without torch where the config can, else converted from tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from troop.core.env import EnvConfig, EnvSpec, Obs, Step, VectorEnv
from troop.core.numpy_env import NumPyEnv, NumPyEnvConfig, NumPyObs, NumPyStep

if TYPE_CHECKING:
    from torch import Tensor


def make_numpy_env(config: EnvConfig, seed: int) -> NumPyEnv:
    """Build the envs of a config; imports torch only if the config cannot build them without it."""
    if isinstance(config, NumPyEnvConfig):
        return config.make_numpy(seed)
    return NumPyView(config.make(seed))


class NumPyView:
    """A NumPyEnv whose steps are those of a VectorEnv on the CPU; arrays share the memory of tensors."""

    def __init__(self, env: VectorEnv) -> None:
        import torch

        self.env = env
        self.spec: EnvSpec = env.spec
        self.notes: list[str] = getattr(env, "notes", [])
        self.files: dict[str, str] = getattr(env, "files", {})
        self._from_numpy = torch.from_numpy

    def reset(self, seed: int) -> NumPyStep:
        """Start a new episode in every env; all rows have `valid` False."""
        return _to_numpy(self.env.reset(seed))

    def send(self, action: np.ndarray) -> None:
        """Start a step."""
        self.env.send(self._from_numpy(action))

    def recv(self) -> NumPyStep:
        """Return the result of the last `send`."""
        return _to_numpy(self.env.recv())

    def step(self, action: np.ndarray) -> NumPyStep:
        """`send` followed by `recv`."""
        self.send(action)
        return self.recv()

    def restart(self, rows: np.ndarray) -> NumPyObs:
        """Restart the envs `rows` and return their first observations."""
        return _arrays(self.env.restart(self._from_numpy(rows)))

    def close(self) -> None:
        """Close the wrapped env; further calls have no effect."""
        self.env.close()


def _to_numpy(step: Step) -> NumPyStep:
    obs = next_obs = _arrays(step.obs)
    if step.next_obs is not step.obs:
        next_obs = _arrays(step.next_obs)
    reward, terminated = _array(step.reward), _array(step.terminated)
    return NumPyStep(
        obs, next_obs, reward, terminated, _array(step.truncated), _array(step.valid), step.faults
    )


def _arrays(obs: Obs) -> NumPyObs:
    return {name: _array(x) for name, x in obs.items()}


def _array(values: Tensor) -> np.ndarray:
    return values.cpu().numpy()
