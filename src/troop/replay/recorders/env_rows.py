"""EnvRowRecorder: rows of envs that step at different times, for central inference with a replay of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from troop.core.algorithm import PolicyOutput
from troop.core.batch import Rollout, State
from troop.core.env import Obs, Step


class EnvRowRecorder:
    """Writes the steps of each env into its own rows and returns `length` of them at a time, in order.

    The rows of an env equal those of a StepRecorder; one more is returned if the last one is a closing row.
    """

    def __init__(self, envs: int, length: int, first_stream: int = 0) -> None:
        self.envs, self.length, self.first_stream = envs, length, first_stream
        self.count = np.zeros(envs, dtype=np.int64)  # rows recorded of each env
        self.obs: dict[str, np.ndarray] = {}  # [envs, length + 1, ...]
        self.rows: dict[str, np.ndarray] = {}

    def on_action(
        self, ids: Tensor, obs: Obs, output: PolicyOutput, state: State = None, version: int = -1
    ) -> None:
        """Write the observations and actions of the envs `ids`."""
        if not self.rows:
            self._allocate(obs, output.action)
        envs = ids.numpy()
        for name, x in obs.items():
            self.obs[name][envs, self.count[envs]] = x.numpy()
        self.rows["action"][envs, self.count[envs]] = output.action.numpy()

    def on_step(self, ids: Tensor, step: Step) -> list[Rollout]:
        """Write the results of the actions of the envs `ids`; return the rows of envs that have enough."""
        envs, valid = ids.numpy(), step.valid.numpy()
        flags = {"terminated": step.terminated, "truncated": step.truncated}
        values = {name: x.numpy() & valid for name, x in flags.items()}
        self._write(envs, {"reward": step.reward.numpy(), "closing": ~valid, **values})
        truncated = step.truncated.numpy()
        if step.next_obs is not step.obs and truncated.any():
            self._close(envs[truncated], {name: x.numpy()[truncated] for name, x in step.next_obs.items()})
        done = envs[self.count[envs] >= self.length]
        return [self._take(done[self.count[done] == count]) for count in np.unique(self.count[done])]

    def _close(self, envs: np.ndarray, final_obs: dict[str, np.ndarray]) -> None:
        """Write a closing row of envs that were truncated and reset within the step."""
        for name, x in final_obs.items():
            self.obs[name][envs, self.count[envs]] = x
        false = np.zeros(len(envs), dtype=bool)
        self.rows["action"][envs, self.count[envs]] = 0
        self._write(envs, {"reward": false, "terminated": false, "truncated": false, "closing": ~false})

    def _write(self, envs: np.ndarray, values: dict[str, np.ndarray]) -> None:
        for name, x in values.items():
            self.rows[name][envs, self.count[envs]] = x
        self.count[envs] += 1

    def _take(self, envs: np.ndarray) -> Rollout:
        """Return the rows of envs that have the same number of them, and begin the next ones."""
        count = int(self.count[envs[0]])

        def time_major(x: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(x[envs, :count].swapaxes(0, 1)))

        fields: dict[str, Any] = {name: time_major(x) for name, x in self.rows.items()}
        obs = {name: time_major(x) for name, x in self.obs.items()}
        self.count[envs] = 0
        return Rollout(torch.from_numpy(envs + self.first_stream), obs, **fields)

    def _allocate(self, obs: Obs, action: Tensor) -> None:
        def rows(like: np.ndarray) -> np.ndarray:
            return np.zeros((self.envs, self.length + 1, *like.shape[1:]), like.dtype)

        self.obs = {name: rows(x.numpy()) for name, x in obs.items()}
        self.rows = {"action": rows(action.numpy()), "reward": rows(np.zeros(1, dtype=np.float32))}
        flags = ("terminated", "truncated", "closing")
        self.rows |= {name: rows(np.zeros(1, dtype=bool)) for name in flags}

    def reset(self, ids: Tensor) -> int:
        """Drop the rows of these envs that were not returned yet; return their number."""
        envs = ids.numpy()
        dropped = int(self.count[envs].sum())
        self.count[envs] = 0
        return dropped
