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
from troop.replay.storage.kernels import Array
from troop.replay.storage.lazy_numba import njit_lazy


@njit_lazy
def write_results(
    envs: Array,
    time: Array,
    reward: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    resets: bool,
    gamma: float,
    returns: Array,
    rows: tuple[Array, Array, Array, Array, Array, Array],
) -> int:
    """Write the results of one step of the envs `envs` and count it in `time`; return the largest count.

    `resets` says that envs that end were reset within the step. `returns` is the recorder's `episode_return`;
    `rows` are its reward, discount, ended, valid and episode_return, [envs, T] each, and its started,
    [envs, T + 1].
    """
    rewards, discounts, ends, valids, episode_returns, started = rows
    longest = 0
    for i in range(len(envs)):
        env = envs[i]
        if env < 0 or env >= len(time) or time[env] >= rewards.shape[1]:  # numba does not check indices
            raise IndexError("an env or a step outside of the recorder")
        t = time[env]
        ended = terminated[i] or truncated[i]
        rewards[env, t], ends[env, t], valids[env, t] = reward[i], ended, valid[i]
        discounts[env, t] = gamma if valid[i] and not terminated[i] else 0.0
        episode_returns[env, t] = returns[env] = returns[env] * np.float32(gamma) + reward[i]
        if ended or not valid[i]:
            returns[env] = 0.0
        started[env, t + 1] = not valid[i] or (resets and ended)
        time[env] = t + 1
        longest = max(longest, t + 1)
    return longest


class UnrollRecorder:
    """Writes the steps of each env into its own row and returns the trajectories that are complete.

    Row for row the trajectories equal those of a TrajectoryRecorder of the same envs.
    """

    first_stream = 0  # a queue of trajectories has no streams

    def __init__(self, envs: int, spec: TrajectorySpec) -> None:
        self.envs, self.length, self.gamma = envs, spec.length, spec.gamma
        self.time = np.zeros(envs, dtype=np.int64)  # steps recorded of each env's current trajectory
        self.episode_return = np.zeros(envs, dtype=np.float32)  # discounted, of the current episodes
        # NumPy writes a few rows in a tenth of the time that torch needs.
        self.obs: dict[str, np.ndarray] = {}  # [envs, T + 1, ...]
        self.rows: dict[str, np.ndarray] = {}  # [envs, T, ...]; "started" has T + 1 entries
        self.extras: dict[str, np.ndarray] = {}
        self.state: State = None  # at entry 0, [envs, ...]
        self.finals: dict[int, list[tuple[int, Obs]]] = {}  # env -> time and final observation
        self._flat: dict[str, np.ndarray] = {}  # extras, [envs * T, ...]
        self._flat_obs: dict[str, np.ndarray] = {}

    def on_action(
        self, ids: Tensor, obs: Obs, output: PolicyOutput, state: State = None, version: int = -1
    ) -> None:
        """Write the observations, actions and what the policy returned with them, for the envs `ids`."""
        if not self.rows:
            self._allocate(obs, output, state)
        envs = ids.numpy()
        time = self.time[envs]
        self._write_obs(envs, time, obs)
        rows = envs * self.length + time
        self._flat_action[rows] = output.action.numpy()
        self._flat["version"][rows] = version
        for name, x in output.extras.items():
            self._flat[name][rows] = x.numpy()
        if state is not None and not time.all():
            begun, first = torch.from_numpy(envs[time == 0]), torch.from_numpy(time == 0)
            pytree.tree_map(lambda own, x: own.index_copy_(0, begun, x[first]), self.state, state)

    def on_step(self, ids: Tensor, step: Step) -> list[Trajectory]:
        """Write the results of the actions of the envs `ids`; return what they complete."""
        envs, truncated = ids.numpy(), step.truncated.numpy()
        if step.next_obs is not step.obs:
            for row in np.flatnonzero(truncated).tolist():
                final = {name: x[row].clone() for name, x in step.next_obs.items()}
                self.finals.setdefault(int(envs[row]), []).append((int(self.time[envs[row]]), final))
        results = (step.reward.numpy(), step.terminated.numpy(), truncated, step.valid.numpy())
        resets, own = step.next_obs is not step.obs, self.episode_return
        if write_results(envs, self.time, *results, resets, self.gamma, own, self._results) < self.length:
            return []
        complete = self.time[envs] == self.length
        done, selected = envs[complete], torch.from_numpy(complete)
        obs = {name: x[selected] for name, x in step.obs.items()}
        self._write_obs(done, self.time[done], obs)
        return [self._take(done)]

    def reset(self, ids: Tensor) -> int:
        """Drop the unfinished trajectories of these envs, which start new episodes; return their steps."""
        envs = ids.numpy()
        dropped = int(self.time[envs].sum())
        self.time[envs], self.episode_return[envs] = 0, 0.0
        if self.rows:
            self.rows["started"][envs, 0] = True
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
        started[:, 0] = True
        self.rows = {"action": rows(output.action), "started": started} | numbers | flags
        self.obs = {name: rows(x, 1) for name, x in obs.items()}
        self.extras = {name: rows(x) for name, x in output.extras.items()}
        self.extras["version"] = np.zeros(shape, dtype=np.int64)
        self.extras["episode_return"] = np.zeros(shape, dtype=np.float32)
        self.state = pytree.tree_map_only(Tensor, lambda x: x.new_zeros(self.envs, *x.shape[1:]), state)
        # The same memory: one index per row is faster than two.
        self._flat = {name: x.reshape(-1, *x.shape[2:]) for name, x in self.extras.items()}
        self._flat_action = self.rows["action"].reshape(-1, *self.rows["action"].shape[2:])
        self._flat_obs = {name: x.reshape(-1, *x.shape[2:]) for name, x in self.obs.items()}
        reward, discount, ended, valid = (self.rows[x] for x in ("reward", "discount", "ended", "valid"))
        self._results = (reward, discount, ended, valid, self.extras["episode_return"], started)

    def _write_obs(self, envs: np.ndarray, time: np.ndarray, obs: Obs) -> None:
        rows = envs * (self.length + 1) + time
        for name, x in obs.items():
            self._flat_obs[name][rows] = x.numpy()

    def _take(self, done: np.ndarray) -> Trajectory:
        """Return the trajectories of the envs `done` side by side and begin their next ones."""

        def time_major(x: np.ndarray) -> Tensor:
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
        fields: dict[str, Any] = {name: time_major(x) for name, x in self.rows.items()}
        started = self.rows["started"]
        started[done, 0] = started[done, -1]
        return Trajectory(
            obs={name: time_major(x) for name, x in self.obs.items()},
            final_obs=final_obs,
            final_index=torch.tensor([index for index, _ in finals], dtype=torch.int64),
            state=pytree.tree_map_only(Tensor, lambda x: x[rows].clone(), self.state),
            extras={name: time_major(x) for name, x in self.extras.items()},
            **fields,
        )
