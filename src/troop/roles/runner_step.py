"""RunnerStep: a step of envs as a runner sends it to its inference server; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from troop.core.numpy_env import NumPyObs, NumPyStep


@dataclass(frozen=True, slots=True)
class RunnerStep:
    """A NumPyStep in which `next_obs` is None where it is the same object as `obs`."""

    obs: NumPyObs
    next_obs: NumPyObs | None
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray

    @classmethod
    def of(cls, step: NumPyStep) -> RunnerStep:
        """Return the message of a step."""
        next_obs = None if step.next_obs is step.obs else step.next_obs
        return cls(step.obs, next_obs, step.reward, step.terminated, step.truncated, step.valid)
