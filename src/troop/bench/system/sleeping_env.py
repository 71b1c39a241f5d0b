"""An env that only sleeps, as if its simulator were on another machine; needs no torch."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Self

import numpy as np

from troop.core.env import OBS, Discrete, EnvSpec, Field, VectorEnv
from troop.core.numpy_env import NumPyObs, NumPyStep, first_step
from troop.envs.tensor_env import to_tensors


@dataclass(frozen=True)
class SleepingEnvConfig:
    """An env whose vector steps take `seconds` and return constant observations."""

    envs: int = 4
    seconds: float = 0.005
    id: str = "sleeping"
    seconds_per_env: float = 0.0  # added to `seconds` for each env
    slow_seed: int | None = None  # a vector env made with this seed is `slowdown` times slower
    slowdown: float = 5.0
    shape: tuple[int, ...] = (8,)  # of an observation; images are uint8

    @property
    def spec(self) -> EnvSpec:
        """Eight numbers or an image observed, two discrete actions."""
        dtype = "uint8" if len(self.shape) == 3 else "float32"
        return EnvSpec(self.id, {OBS: Field(self.shape, dtype)}, Discrete(2), self.envs)

    def make(self, seed: int, device: str = "cpu") -> VectorEnv:
        """Build the vector env."""
        return to_tensors(self.make_numpy(seed), device)

    def make_numpy(self, seed: int) -> SleepingEnv:
        """Build the vector env without torch."""
        seconds = self.seconds + self.seconds_per_env * self.envs
        return SleepingEnv(self, seconds * (self.slowdown if seed == self.slow_seed else 1.0))

    def with_envs(self, envs: int) -> Self:
        """Return a copy with another number of envs."""
        return dataclasses.replace(self, envs=envs)

    def for_evaluation(self) -> Self:
        """Return the same config."""
        return self


class SleepingEnv:
    """A NumPyEnv whose `recv` sleeps until `seconds` after `send`."""

    def __init__(self, cfg: SleepingEnvConfig, seconds: float) -> None:
        self.seconds, self.spec, self.due = seconds, cfg.spec, 0.0
        field = self.spec.obs[OBS]
        obs = {OBS: np.zeros((cfg.envs, *field.shape), field.dtype_name)}
        self.first_step = first_step(obs, cfg.envs)
        self.next_step = dataclasses.replace(self.first_step, valid=~self.first_step.valid)

    def reset(self, seed: int) -> NumPyStep:
        """Return the first observations without delay."""
        return self.first_step

    def send(self, action: np.ndarray) -> None:
        """Start a step of `seconds`."""
        self.due = time.monotonic() + self.seconds

    def recv(self) -> NumPyStep:
        """Sleep until the step is due; return it."""
        if (remaining := self.due - time.monotonic()) > 0:
            time.sleep(remaining)
        return self.next_step

    def step(self, action: np.ndarray) -> NumPyStep:
        """Send and receive."""
        self.send(action)
        return self.recv()

    def restart(self, rows: np.ndarray) -> NumPyObs:
        """Return the first observations of these rows."""
        return {name: value[rows] for name, value in self.first_step.obs.items()}

    def close(self) -> None:
        """Do nothing; no resource is held."""
