"""Sequence recorders: overlapping sequences that never cross an episode's end (Kapturowski et al. 2019)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from troop.core.algorithm import PolicyOutput
from troop.core.batch import SequenceSpec, State, Trajectory
from troop.core.env import Obs, Step

InitialPriority = Callable[[Trajectory], Tensor]
"""Returns the priorities [B] of new sequences from what the policy returned while acting."""


class SequenceRecorder:
    """Writes the steps of each env into its own sequence and returns the sequences that are complete.

    A sequence is complete when it has `length` rows, when the episode ends, and before a step that is not
    valid; rows without a step are not valid and zero. The state of the policy is kept for every row, so that
    each sequence has the one that belongs to its entry 0, whatever the overlap.
    """

    first_stream = 0  # a replay of sequences has no streams

    def __init__(
        self, envs: int, spec: SequenceSpec, initial_priority: InitialPriority | None = None
    ) -> None:
        self.envs, self.spec, self.initial_priority = envs, spec, initial_priority
        self.time = torch.full((envs,), spec.burn_in)  # next row of each env
        self.first_new = self.time.clone()  # first row that is in no earlier sequence
        self.started = torch.ones(envs, dtype=torch.bool)  # whether the next observation starts an episode
        self.episode_return = torch.zeros(envs)  # discounted, of the current episodes
        self.obs: Obs = {}  # [envs, T + 1, ...]
        self.rows: dict[str, Tensor] = {}  # [envs, T, ...]; "started" has T + 1 entries
        self.extras: dict[str, Tensor] = {}  # [envs, T, ...]
        self.states: State = None  # before each row, [envs, T, ...]

    def on_action(
        self, ids: Tensor, obs: Obs, output: PolicyOutput, state: State = None, version: int = -1
    ) -> None:
        """Write the observations, actions and what the policy returned with them, for the envs `ids`."""
        if not self.rows:
            self._allocate(obs, output, state)
        time = self.time[ids]
        self._write_obs(ids, time, obs)
        self.rows["started"][ids, time] = self.started[ids]
        self.rows["action"][ids, time] = output.action
        for name, x in output.extras.items():
            self.extras[name][ids, time] = x
        self.extras["version"][ids, time] = version
        if state is not None:
            pytree.tree_map(lambda own, x: own.index_put_((ids, time), x), self.states, state)

    def on_step(self, ids: Tensor, step: Step) -> list[Trajectory]:
        """Write the results of the actions of the envs `ids`; return the sequences that they complete."""
        time, rows, valid = self.time[ids], self.rows, step.valid
        ended = (step.terminated | step.truncated) & valid
        rows["reward"][ids, time] = torch.where(valid, step.reward, 0.0)
        rows["discount"][ids, time] = torch.where(step.terminated | ~valid, 0.0, self.spec.gamma)
        rows["ended"][ids, time] = ended
        rows["valid"][ids, time] = valid
        returns = self.episode_return[ids] * self.spec.gamma + step.reward
        self.extras["episode_return"][ids, time] = returns
        self.episode_return[ids] = returns.masked_fill(ended | ~valid, 0.0)
        stepped = ids[valid]
        self._write_obs(stepped, time[valid] + 1, {name: x[valid] for name, x in step.next_obs.items()})
        self.time[stepped] += 1
        self.started[ids] = step.started
        complete = ended | ~valid | (self.time[ids] == self.spec.length)
        if not bool(complete.any()):
            return []
        done, over = ids[complete], (ended | ~valid)[complete]
        self._remove_unfinished_rows(ids[~valid])
        return self._take(done, over)

    def end_episodes(self, ids: Tensor, obs: Obs) -> list[Trajectory]:
        """End the episodes of the envs `ids` at `obs`, before a forced reset; return what this completes."""
        self._write_obs(ids, self.time[ids], obs)
        self._remove_unfinished_rows(ids)
        self.started[ids], self.episode_return[ids] = True, 0.0
        return self._take(ids, torch.ones(len(ids), dtype=torch.bool))

    def reset(self, ids: Tensor) -> int:
        """Drop the unfinished sequences of these envs, which start new episodes; return their new steps."""
        dropped = int((self.time[ids] - self.first_new[ids]).sum())
        self.started[ids], self.episode_return[ids] = True, 0.0
        self._begin(ids, torch.ones(len(ids), dtype=torch.bool))
        return dropped

    def _remove_unfinished_rows(self, ids: Tensor) -> None:
        """Remove the last row of the envs `ids`, which is not a step; the step before it is the last one."""
        time = self.time[ids]
        for x in (*self.extras.values(), *(x for name, x in self.rows.items() if name != "started")):
            x[ids, time] = 0
        recorded = time > self.first_new[ids]
        self.rows["ended"][ids[recorded], time[recorded] - 1] = True

    def _take(self, done: Tensor, over: Tensor) -> list[Trajectory]:
        """Return the sequences of the envs `done` side by side and begin their next ones.

        `over` [len(done)] marks envs whose next steps do not continue these. Sequences without a new step
        are left out.
        """
        new = done[self.time[done] > self.first_new[done]]
        taken = [self._sequences(new)] if len(new) else []
        self._begin(done, over)
        return taken

    def _sequences(self, done: Tensor) -> Trajectory:
        def time_major(x: Tensor) -> Tensor:
            return x[done].transpose(0, 1).contiguous()

        fields: dict[str, Any] = {name: time_major(x) for name, x in self.rows.items()}
        sequences = Trajectory(
            obs={name: time_major(x) for name, x in self.obs.items()},
            final_obs={name: x[0, :0] for name, x in self.obs.items()},
            final_index=torch.empty(0, dtype=torch.int64),
            state=pytree.tree_map_only(Tensor, lambda x: x[done, 0], self.states),
            extras={name: time_major(x) for name, x in self.extras.items()},
            **fields,
        )
        if self.initial_priority is None:
            return sequences
        # A network that returns NaN must not corrupt the replay.
        priority = self.initial_priority(sequences).nan_to_num(0.0, 0.0, 0.0)
        return dataclasses.replace(sequences, priority=priority)

    def _begin(self, ids: Tensor, over: Tensor) -> None:
        """Begin the next sequences of the envs `ids`: with the overlap or, where `over`, with a burn-in."""
        spec = self.spec
        self.time[ids] = self.first_new[ids] = torch.where(over, spec.burn_in, spec.overlap)
        if not self.rows:
            return
        continued, ended = ids[~over], ids[over]
        states = [x for x in pytree.tree_leaves(self.states) if isinstance(x, Tensor)]
        for x in (*self.obs.values(), *self.rows.values(), *self.extras.values(), *states):
            kept = spec.overlap + x.shape[1] - spec.length  # T + 1 entries keep one more
            last = x[continued, x.shape[1] - kept :]
            x[continued, :kept] = last
            x[continued, kept:] = 0
            x[ended] = 0

    def _allocate(self, obs: Obs, output: PolicyOutput, state: State) -> None:
        def rows(like: Tensor, extra: int = 0) -> Tensor:
            return torch.zeros(self.envs, self.spec.length + extra, *like.shape[1:], dtype=like.dtype)

        number, flag = torch.zeros(self.envs), torch.zeros(self.envs, dtype=torch.bool)
        self.rows = {"action": rows(output.action), "started": rows(flag, 1)}
        self.rows |= {name: rows(number) for name in ("reward", "discount")}
        self.rows |= {name: rows(flag) for name in ("ended", "valid")}
        self.obs = {name: rows(x, 1) for name, x in obs.items()}
        self.extras = {name: rows(x) for name, x in output.extras.items()}
        self.extras["version"] = rows(torch.zeros(self.envs, dtype=torch.int64))
        self.extras["episode_return"] = rows(number)
        self.states = pytree.tree_map_only(Tensor, rows, state)

    def _write_obs(self, ids: Tensor, time: Tensor, obs: Obs) -> None:
        for name, x in obs.items():
            self.obs[name][ids, time] = x

    def state_dict(self) -> dict[str, Any]:
        """Return the unfinished sequences."""
        names = ("time", "first_new", "started", "episode_return", "obs", "rows", "extras", "states")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`; sequences of another number of envs or length are dropped."""
        copied = pytree.tree_map_only(Tensor, torch.clone, state)
        if len(copied["time"]) != self.envs:
            return
        rows = copied["rows"]
        if rows and rows["reward"].shape[1] != self.spec.length:  # the episodes go on: begin where they are
            self.started, self.episode_return = copied["started"], copied["episode_return"]
            self.time[:], self.first_new[:] = 0, 0
            return
        for name, value in copied.items():
            setattr(self, name, value)


T = TypeVar("T")


def _on_host(value: T) -> T:
    """Return nested tensors on the host, themselves if they are there."""
    moved: T = pytree.tree_map_only(Tensor, Tensor.cpu, value)
    return moved


class VectorSequenceRecorder:
    """Records all envs of a vector env, which step together, with a SequenceRecorder on the host."""

    def __init__(
        self,
        envs: int,
        spec: SequenceSpec,
        first_stream: int = 0,
        initial_priority: InitialPriority | None = None,
    ) -> None:
        self.streams = torch.arange(first_stream, first_stream + envs)
        self.ids = torch.arange(envs)
        self.recorder = SequenceRecorder(envs, spec, initial_priority)

    def on_action(self, obs: Obs, output: PolicyOutput, state: State = None, version: int = -1) -> None:
        """Write the observations, the actions and what the policy returned with them."""
        moved = PolicyOutput(_on_host(output.action), None, _on_host(output.extras))
        self.recorder.on_action(self.ids, _on_host(obs), moved, _on_host(state), version)

    def on_step(self, step: Step) -> list[Trajectory]:
        """Write the results of the actions; return the sequences that they complete."""
        next_obs = obs = _on_host(step.obs)
        if step.next_obs is not step.obs:
            next_obs = _on_host(step.next_obs)
        reward, valid = step.reward.cpu(), step.valid.cpu()
        moved = Step(obs, next_obs, reward, step.terminated.cpu(), step.truncated.cpu(), valid)
        return self.recorder.on_step(self.ids, moved)

    def flush(self, obs: Obs) -> list[Trajectory]:
        """End all streams at `obs`, before a forced reset of the envs; return what this completes."""
        if not self.recorder.rows:
            return []
        return self.recorder.end_episodes(self.ids, _on_host(obs))

    def state_dict(self) -> dict[str, Any]:
        """Return the unfinished sequences."""
        return self.recorder.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.recorder.load_state_dict(state)
