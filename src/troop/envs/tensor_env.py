"""TensorEnv: a NumPyEnv as a VectorEnv. Backends compute in NumPy, so envs can run without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from troop.core.env import EnvSpec, Obs, Step, VectorEnv
from troop.core.numpy_env import NumPyEnv, NumPyObs, NumPyStep

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


def to_tensors(env: NumPyEnv, device: str) -> VectorEnv:
    """Return the env with tensors on `device`; on the CPU they share the memory of its arrays."""
    return TensorEnv(env, device)


class TensorEnv:
    """A VectorEnv whose steps are those of a NumPyEnv."""

    def __init__(self, env: NumPyEnv, device: str) -> None:
        import torch

        self.env, self.device = env, torch.device(device)
        self.spec: EnvSpec = env.spec
        self.notes: list[str] = getattr(env, "notes", [])
        self.files: dict[str, str] = getattr(env, "files", {})
        self._from_numpy = torch.from_numpy

    def reset(self, seed: int) -> Step:
        """Start a new episode in every env; all rows have `valid` False."""
        return self._step(self.env.reset(seed))

    def send(self, action: Tensor) -> None:
        """Start a step."""
        self.env.send(action.detach().cpu().numpy())

    def recv(self) -> Step:
        """Return the result of the last `send`."""
        return self._step(self.env.recv())

    def step(self, action: Tensor) -> Step:
        """`send` followed by `recv`."""
        self.send(action)
        return self.recv()

    def restart(self, rows: Tensor) -> Obs:
        """Restart the envs `rows` and return their first observations."""
        return self._obs(self.env.restart(rows.cpu().numpy()))

    def close(self) -> None:
        """Close the wrapped env; further calls have no effect."""
        self.env.close()

    def _step(self, step: NumPyStep) -> Step:
        obs = next_obs = self._obs(step.obs)
        if step.next_obs is not step.obs:
            next_obs = self._obs(step.next_obs)
        reward, terminated = self._tensor(step.reward), self._tensor(step.terminated)
        truncated, valid = self._tensor(step.truncated), self._tensor(step.valid)
        return Step(obs, next_obs, reward, terminated, truncated, valid, step.faults)

    def _obs(self, obs: NumPyObs) -> Obs:
        return {name: self._tensor(x) for name, x in obs.items()}

    def _tensor(self, values: np.ndarray) -> Tensor:
        return self._from_numpy(values).to(self.device)
