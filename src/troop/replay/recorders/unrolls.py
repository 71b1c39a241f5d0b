"""UnrollRecorder: trajectories of envs that step at different times, for central inference."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from troop.core.algorithm import PolicyOutput
from troop.core.batch import State, Trajectory, TrajectorySpec
from troop.core.env import Obs, Step


class UnrollRecorder:
    """Writes the steps of each env into its own row and returns the trajectories that are complete.

    Row for row the trajectories equal those of a TrajectoryRecorder of the same envs.
    """

    def __init__(self, envs: int, spec: TrajectorySpec) -> None:
        self.envs, self.length, self.gamma = envs, spec.length, spec.gamma
        self.time = np.zeros(envs, dtype=np.int64)  # steps recorded of each env's current trajectory
        self.started = np.ones(envs, dtype=bool)  # whether the next observation starts an episode
        self.episode_return = np.zeros(envs, dtype=np.float32)  # discounted, of the current episodes
        # NumPy writes a few rows in a tenth of the time that torch needs.
        self.obs: dict[str, np.ndarray] = {}  # [envs, T + 1, ...]
        self.rows: dict[str, np.ndarray] = {}  # [envs, T, ...]; "started" has T + 1 entries
        self.extras: dict[str, np.ndarray] = {}
        self.state: State = None  # at entry 0, [envs, ...]
        self.finals: dict[int, list[tuple[int, Obs]]] = {}  # env -> time and final observation

    def on_action(
        self, ids: Tensor, obs: Obs, output: PolicyOutput, state: State = None, version: int = -1
    ) -> None:
        """Write the observations, actions and what the policy returned with them, for the envs `ids`."""
        if not self.rows:
            self._allocate(obs, output, state)
        envs = ids.numpy()
        time = self.time[envs]
        self._write_obs(envs, time, obs)
        self.rows["action"][envs, time] = output.action.numpy()
        for name, x in output.extras.items():
            self.extras[name][envs, time] = x.numpy()
        self.extras["version"][envs, time] = version
        first = time == 0
        if state is not None and first.any():
            begun, rows = torch.from_numpy(envs[first]), torch.from_numpy(first)
            pytree.tree_map(lambda own, x: own.index_copy_(0, begun, x[rows]), self.state, state)

    def on_step(self, ids: Tensor, step: Step) -> list[Trajectory]:
        """Write the results of the actions of the envs `ids`; return what they complete."""
        envs, rows = ids.numpy(), self.rows
        reward, terminated, truncated, valid = (
            x.numpy() for x in (step.reward, step.terminated, step.truncated, step.valid)
        )
        time, ended = self.time[envs], terminated | truncated
        rows["reward"][envs, time] = reward
        rows["discount"][envs, time] = np.where(terminated | ~valid, 0.0, self.gamma)
        rows["ended"][envs, time] = ended
        rows["valid"][envs, time] = valid
        returns = self.episode_return[envs] * np.float32(self.gamma) + reward
        self.extras["episode_return"][envs, time] = returns
        self.episode_return[envs] = np.where(ended | ~valid, np.float32(0), returns)
        self.started[envs] = step.started.numpy()
        if step.next_obs is not step.obs:
            for row in np.flatnonzero(truncated).tolist():
                final = {name: x[row].clone() for name, x in step.next_obs.items()}
                self.finals.setdefault(int(envs[row]), []).append((int(time[row]), final))
        self.time[envs] = time = time + 1
        complete = time == self.length
        if not complete.any():
            return []
        selected = torch.from_numpy(complete)
        done = envs[complete]
        self._write_obs(done, time[complete], {name: x[selected] for name, x in step.obs.items()})
        return [self._take(done)]

    def reset(self, ids: Tensor) -> int:
        """Drop the unfinished trajectories of these envs, which start new episodes; return their steps."""
        envs = ids.numpy()
        dropped = int(self.time[envs].sum())
        self.time[envs], self.started[envs], self.episode_return[envs] = 0, True, 0.0
        for env in envs.tolist():
            self.finals.pop(env, None)
        return dropped

    def _allocate(self, obs: Obs, output: PolicyOutput, state: State) -> None:
        shape = (self.envs, self.length)

        def rows(like: Tensor, extra: int = 0) -> np.ndarray:
            array = like[:0].numpy()
            return np.zeros((self.envs, self.length + extra, *array.shape[1:]), array.dtype)

        flags = {name: np.zeros(shape, dtype=bool) for name in ("ended", "valid")}
        numbers = {name: np.zeros(shape, dtype=np.float32) for name in ("reward", "discount")}
        started = np.zeros((self.envs, self.length + 1), dtype=bool)
        self.rows = {"action": rows(output.action), "started": started} | numbers | flags
        self.obs = {name: rows(x, 1) for name, x in obs.items()}
        self.extras = {name: rows(x) for name, x in output.extras.items()}
        self.extras["version"] = np.zeros(shape, dtype=np.int64)
        self.extras["episode_return"] = np.zeros(shape, dtype=np.float32)
        self.state = pytree.tree_map_only(Tensor, lambda x: x.new_zeros(self.envs, *x.shape[1:]), state)

    def _write_obs(self, envs: np.ndarray, time: np.ndarray, obs: Obs) -> None:
        for name, x in obs.items():
            self.obs[name][envs, time] = x.numpy()
        self.rows["started"][envs, time] = self.started[envs]

    def _take(self, done: np.ndarray) -> Trajectory:
        """Return the trajectories of the envs `done` side by side and begin their next ones."""

        def beside(x: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(x[done].swapaxes(0, 1)))

        finals = [
            (time * len(done) + column, obs)
            for column, env in enumerate(done.tolist())
            for time, obs in self.finals.pop(env, [])
        ]
        finals.sort(key=lambda final: final[0])
        final_obs = {
            name: torch.stack([obs[name] for _, obs in finals]) if finals else torch.from_numpy(x[0, :0])
            for name, x in self.obs.items()
        }
        self.time[done] = 0
        rows = torch.from_numpy(done)
        fields: dict[str, Any] = {name: beside(x) for name, x in self.rows.items()}
        return Trajectory(
            obs={name: beside(x) for name, x in self.obs.items()},
            final_obs=final_obs,
            final_index=torch.tensor([index for index, _ in finals], dtype=torch.int64),
            state=pytree.tree_map_only(Tensor, lambda x: x[rows].clone(), self.state),
            extras={name: beside(x) for name, x in self.extras.items()},
            **fields,
        )
