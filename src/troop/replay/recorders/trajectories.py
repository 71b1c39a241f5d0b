"""TrajectoryRecorder: `length` vector steps of all envs as one Trajectory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from troop.core.algorithm import PolicyOutput
from troop.core.batch import State, Trajectory, TrajectorySpec
from troop.core.env import Obs, Step


class TrajectoryRecorder:
    """Writes each vector step into preallocated tensors [T, B, ...] and returns them when they are full."""

    def __init__(self, envs: int, spec: TrajectorySpec, first_stream: int = 0) -> None:
        self.streams = torch.arange(first_stream, first_stream + envs)
        self.envs, self.length, self.gamma = envs, spec.length, spec.gamma
        self.time = 0  # steps recorded of the current trajectory
        self.rows: dict[str, Tensor] = {}  # fields of the current trajectory
        self.obs: Obs = {}  # [T + 1, B, ...]
        self.extras: dict[str, Tensor] = {}
        self.state: State = None
        self.finals: list[tuple[Obs, Tensor]] = []  # final observations and the index of their steps
        self.started: Tensor | None = None  # [B], of the next observation; None: all
        self.episode_return: Tensor | None = None  # [B], discounted, of the current episodes

    def on_action(self, obs: Obs, output: PolicyOutput, state: State = None, version: int = -1) -> None:
        """Write the observation, the action and what the policy returned with it."""
        if not self.time:
            self._allocate(obs, output)
            self.state = state
        self._write_obs(self.time, obs)
        self.rows["action"][self.time] = output.action
        for name, x in output.extras.items():
            self.extras[name][self.time] = x
        self.extras["version"][self.time] = version

    def on_step(self, step: Step) -> list[Trajectory]:
        """Write the result of the action; return the trajectory that it completes, if it does."""
        t, rows = self.time, self.rows
        rows["reward"][t] = step.reward
        rows["discount"][t] = torch.where(step.terminated | ~step.valid, 0.0, self.gamma)
        torch.logical_or(step.terminated, step.truncated, out=rows["ended"][t])
        rows["valid"][t] = step.valid
        assert self.episode_return is not None
        self.episode_return.mul_(self.gamma).add_(step.reward)
        self.extras["episode_return"][t] = self.episode_return
        self.started = step.started
        self.episode_return.masked_fill_(rows["ended"][t] | ~step.valid, 0.0)
        if step.next_obs is not step.obs and step.truncated.any():
            envs = step.truncated.nonzero().squeeze(1)
            self.finals.append(({name: x[envs] for name, x in step.next_obs.items()}, envs + t * self.envs))
        self.time += 1
        if self.time < self.length:
            return []
        self._write_obs(self.time, step.obs)
        return [self._take()]

    def flush(self, obs: Obs) -> list[Trajectory]:
        """End all streams at `obs`, which becomes a row that is not valid; return what this completes.

        After a complete trajectory nothing is to be ended: its last observation is `obs`.
        """
        completed: list[Trajectory] = []
        if self.time:
            t, rows = self.time, self.rows
            self._write_obs(t, obs)
            for x in (*self.extras.values(), rows["action"], rows["reward"], rows["discount"], rows["valid"]):
                x[t] = 0
            rows["ended"][t - 1] = True
            rows["ended"][t] = True
            self.time += 1
            if self.time == self.length:
                self._write_obs(self.time, obs)
                self.started = None
                completed = [self._take()]
        self.started = None
        if self.episode_return is not None:
            self.episode_return.zero_()
        return completed

    def end_rollout(self, obs: Obs) -> list[Trajectory]:
        """Return the steps recorded so far as a shorter trajectory that ends at `obs`; nothing without steps.

        The episodes continue in the next trajectory.
        """
        if not self.time:
            return []
        steps = self.time
        self._write_obs(steps, obs)
        self.rows = {name: x[: steps + (name == "started")] for name, x in self.rows.items()}
        self.obs = {name: x[: steps + 1] for name, x in self.obs.items()}
        self.extras = {name: x[:steps] for name, x in self.extras.items()}
        return [self._take()]

    def _allocate(self, obs: Obs, output: PolicyOutput) -> None:
        shape, device = (self.length, self.envs), output.action.device

        def rows(like: Tensor, extra: int = 0) -> Tensor:
            return torch.empty(self.length + extra, *like.shape, dtype=like.dtype, device=like.device)

        flags = {name: torch.empty(shape, dtype=torch.bool, device=device) for name in ("ended", "valid")}
        numbers = {name: torch.empty(shape, device=device) for name in ("reward", "discount")}
        first = torch.empty(self.length + 1, self.envs, dtype=torch.bool, device=device)
        self.rows = {"action": rows(output.action), "started": first} | numbers | flags
        self.obs = {name: rows(x, 1) for name, x in obs.items()}
        self.extras = {name: rows(x) for name, x in output.extras.items()}
        self.extras["version"] = torch.empty(shape, dtype=torch.int64, device=device)
        self.extras["episode_return"] = torch.empty(shape, device=device)
        if self.episode_return is None:
            self.episode_return = torch.zeros(self.envs, device=device)

    def _write_obs(self, t: int, obs: Obs) -> None:
        for name, x in obs.items():
            self.obs[name][t] = x
        self.rows["started"][t] = True if self.started is None else self.started

    def _take(self) -> Trajectory:
        self.time = 0
        names = ("action", "reward", "discount", "ended", "valid", "started")
        finals, self.finals = self.finals, []
        if finals:
            final_obs = {name: torch.cat([obs[name] for obs, _ in finals]) for name in self.obs}
            final_index = torch.cat([index for _, index in finals])
        else:
            final_obs = {name: x[0, :0] for name, x in self.obs.items()}
            final_index = torch.empty(0, dtype=torch.int64, device=self.rows["reward"].device)
        fields: dict[str, Any] = {name: self.rows[name] for name in names}
        fields |= {"final_obs": final_obs, "final_index": final_index}
        return Trajectory(obs=self.obs, state=self.state, extras=self.extras, **fields)

    def state_dict(self) -> dict[str, Any]:
        """Return the steps recorded so far."""
        return {
            "time": self.time,
            "rows": dict(self.rows) if self.time else {},
            "obs": dict(self.obs) if self.time else {},
            "extras": dict(self.extras) if self.time else {},
            "state": self.state if self.time else None,
            "finals": [{"obs": obs, "index": index} for obs, index in self.finals],
            "started": self.started,
            "episode_return": self.episode_return,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`; steps of another number of envs or length are dropped."""
        copied = pytree.tree_map_only(Tensor, torch.clone, state)
        rows, started, episode_return = copied["rows"], copied["started"], copied["episode_return"]
        if episode_return is not None and len(episode_return) == self.envs:  # the episodes continue
            self.started, self.episode_return = started, episode_return
        if rows and tuple(rows["reward"].shape) != (self.length, self.envs):
            return
        self.time, self.rows, self.obs = int(state["time"]), rows, copied["obs"]
        self.extras, self.state = copied["extras"], copied["state"]
        self.finals = [(final["obs"], final["index"]) for final in copied["finals"]]
