"""Vector envs of NumPy arrays: what a backend returns before its steps become tensors.

A process that only steps envs (`roles/env_runner.py`) uses these and never imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from troop.core.env import EnvSpec

NumPyObs = dict[str, np.ndarray]
"""Named observations, each [N, ...], as `Obs`."""


@dataclass(frozen=True, slots=True)
class NumPyStep:
    """The result of one step (or reset) of N envs: fields and meaning are those of `Step`."""

    obs: NumPyObs
    next_obs: NumPyObs  # the same object as `obs` unless a row was reset in this step
    reward: np.ndarray  # [N] float32
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool
    valid: np.ndarray  # [N] bool
    faults: int = 0

    @property
    def started(self) -> np.ndarray:
        """[N] bool: rows whose `obs` is the first observation of an episode."""
        started: np.ndarray = ~self.valid
        if self.next_obs is not self.obs:
            started = started | self.terminated | self.truncated
        return started


class NumPyEnv(Protocol):
    """A VectorEnv of NumPy arrays: methods and their meaning are those of `VectorEnv`."""

    spec: EnvSpec

    def reset(self, seed: int) -> NumPyStep:
        """Start a new episode in every env; all rows of the result have `valid` False."""
        ...

    def send(self, action: np.ndarray) -> None:
        """Start a step; an asynchronous backend returns at once."""
        ...

    def recv(self) -> NumPyStep:
        """Wait for the step that the last `send` started and return its result."""
        ...

    def step(self, action: np.ndarray) -> NumPyStep:
        """`send` followed by `recv`."""
        ...

    def restart(self, rows: np.ndarray) -> NumPyObs:
        """Start a new episode in the envs `rows` (int64 [K]) and return their first observations."""
        ...

    def close(self) -> None:
        """Release threads, processes and memory; further calls have no effect."""
        ...


@runtime_checkable
class NumPyEnvConfig(Protocol):
    """An EnvConfig whose envs can be built without torch. All backends of Troop are."""

    def make_numpy(self, seed: int) -> NumPyEnv:
        """Build the vector env; `EnvConfig.make` builds the same env with tensors."""
        ...


def first_step(obs: NumPyObs, envs: int) -> NumPyStep:
    """Return the result of a reset: every row begins an episode."""
    false = np.zeros(envs, dtype=bool)
    return NumPyStep(obs, obs, np.zeros(envs, dtype=np.float32), false, false, false)


def replace_rows(values: np.ndarray, rows: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return a copy of `values` whose rows at the indices or the mask `rows` are `new`."""
    copy = values.copy()
    copy[rows] = new
    return copy
