"""UnrollRecorder: trajectories of envs that step at different times, for central inference."""

from __future__ import annotations

from typing import Any

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
        self.time = torch.zeros(envs, dtype=torch.int64)  # steps recorded of each env's current trajectory
        self.started = torch.ones(envs, dtype=torch.bool)  # whether the next observation starts an episode
        self.episode_return = torch.zeros(envs)  # discounted, of the current episodes
        self.obs: Obs = {}  # [envs, T + 1, ...]
        self.rows: dict[str, Tensor] = {}  # [envs, T, ...]; "started" has T + 1 entries
        self.extras: dict[str, Tensor] = {}
        self.state: State = None  # at entry 0, [envs, ...]
        self.finals: dict[int, list[tuple[int, Obs]]] = {}  # env -> time and final observation

    def on_action(
        self, ids: Tensor, obs: Obs, output: PolicyOutput, state: State = None, version: int = -1
    ) -> None:
        """Write the observations, actions and what the policy returned with them, for the envs `ids`."""
        if not self.rows:
            self._allocate(obs, output, state)
        time = self.time[ids]
        self._write_obs(ids, time, obs)
        self.rows["action"][ids, time] = output.action
        for name, x in output.extras.items():
            self.extras[name][ids, time] = x
        self.extras["version"][ids, time] = version
        first = time == 0
        if state is not None and bool(first.any()):
            begun = ids[first]
            pytree.tree_map(lambda own, x: own.index_copy_(0, begun, x[first]), self.state, state)

    def on_step(self, ids: Tensor, step: Step) -> list[Trajectory]:
        """Write the results of the actions of the envs `ids`; return what they complete."""
        time, rows, ended = self.time[ids], self.rows, step.terminated | step.truncated
        rows["reward"][ids, time] = step.reward
        rows["discount"][ids, time] = torch.where(step.terminated | ~step.valid, 0.0, self.gamma)
        rows["ended"][ids, time] = ended
        rows["valid"][ids, time] = step.valid
        returns = self.episode_return[ids] * self.gamma + step.reward
        self.extras["episode_return"][ids, time] = returns
        self.episode_return[ids] = returns.masked_fill(ended | ~step.valid, 0.0)
        self.started[ids] = step.started
        if step.next_obs is not step.obs:
            for row in step.truncated.nonzero().flatten().tolist():
                final = {name: x[row].clone() for name, x in step.next_obs.items()}
                self.finals.setdefault(int(ids[row]), []).append((int(time[row]), final))
        self.time[ids] = time + 1
        complete = self.time[ids] == self.length
        if not bool(complete.any()):
            return []
        done = ids[complete]
        self._write_obs(done, self.time[done], {name: x[complete] for name, x in step.obs.items()})
        return [self._take(done)]

    def reset(self, ids: Tensor) -> int:
        """Drop the unfinished trajectories of these envs, which start new episodes; return their steps."""
        dropped = int(self.time[ids].sum())
        self.time[ids], self.started[ids], self.episode_return[ids] = 0, True, 0.0
        for env in ids.tolist():
            self.finals.pop(env, None)
        return dropped

    def _allocate(self, obs: Obs, output: PolicyOutput, state: State) -> None:
        shape = (self.envs, self.length)

        def rows(like: Tensor, extra: int = 0) -> Tensor:
            return torch.zeros(self.envs, self.length + extra, *like.shape[1:], dtype=like.dtype)

        flags = {name: torch.zeros(shape, dtype=torch.bool) for name in ("ended", "valid")}
        numbers = {name: torch.zeros(shape) for name in ("reward", "discount")}
        started = torch.zeros(self.envs, self.length + 1, dtype=torch.bool)
        self.rows = {"action": rows(output.action), "started": started} | numbers | flags
        self.obs = {name: rows(x, 1) for name, x in obs.items()}
        self.extras = {name: rows(x) for name, x in output.extras.items()}
        self.extras["version"] = torch.zeros(shape, dtype=torch.int64)
        self.extras["episode_return"] = torch.zeros(shape)
        self.state = pytree.tree_map_only(Tensor, lambda x: x.new_zeros(self.envs, *x.shape[1:]), state)

    def _write_obs(self, ids: Tensor, time: Tensor, obs: Obs) -> None:
        for name, x in obs.items():
            self.obs[name][ids, time] = x
        self.rows["started"][ids, time] = self.started[ids]

    def _take(self, done: Tensor) -> Trajectory:
        """Return the trajectories of the envs `done` side by side and begin their next ones."""

        def beside(x: Tensor) -> Tensor:
            return x[done].transpose(0, 1).contiguous()

        finals = [
            (time * len(done) + column, obs)
            for column, env in enumerate(done.tolist())
            for time, obs in self.finals.pop(env, [])
        ]
        finals.sort(key=lambda final: final[0])
        final_obs = {
            name: torch.stack([obs[name] for _, obs in finals]) if finals else x[0, :0]
            for name, x in self.obs.items()
        }
        self.time[done] = 0
        fields: dict[str, Any] = {name: beside(x) for name, x in self.rows.items()}
        return Trajectory(
            obs={name: beside(x) for name, x in self.obs.items()},
            final_obs=final_obs,
            final_index=torch.tensor([index for index, _ in finals], dtype=torch.int64),
            state=pytree.tree_map_only(Tensor, lambda x: x[done].clone(), self.state),
            extras={name: beside(x) for name, x in self.extras.items()},
            **fields,
        )
