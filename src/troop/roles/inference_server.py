"""InferenceServer: one policy acts for the envs of many runners, and records their trajectories (SEED RL)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from troop.core.algorithm import Policy, PolicyOutput
from troop.core.batch import State, Trajectory
from troop.core.env import Obs, Step
from troop.core.exploration import Exploration
from troop.core.flow import RateLimitedSink, WeightSource
from troop.core.remote import batched
from troop.core.role import Metrics
from troop.roles.replay_sender import ReplaySender
from troop.roles.weights import WeightReader

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunnerStep:
    """A Step as runners send it: `next_obs` is None where it is the same object as `obs`."""

    obs: Obs
    next_obs: Obs | None
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor

    @classmethod
    def of(cls, step: Step) -> RunnerStep:
        """Return the message of a step."""
        next_obs = None if step.next_obs is step.obs else step.next_obs
        return cls(step.obs, next_obs, step.reward, step.terminated, step.truncated, step.valid)

    def step(self) -> Step:
        """Return the Step."""
        next_obs = self.obs if self.next_obs is None else self.next_obs
        return Step(self.obs, next_obs, self.reward, self.terminated, self.truncated, self.valid)


class EnvRecorder(Protocol):
    """Records the steps of envs that are given by their numbers."""

    envs: int

    def on_action(
        self, ids: Tensor, obs: Obs, output: PolicyOutput, state: State = None, version: int = -1
    ) -> None:
        """Record that the policy of this version returned `output` in the envs `ids`."""
        ...

    def on_step(self, ids: Tensor, step: Step) -> Sequence[Trajectory]:
        """Record the results of the actions in the envs `ids`; return what they complete."""
        ...

    def reset(self, ids: Tensor) -> int:
        """Drop the unfinished trajectories of the envs `ids`; return their steps."""
        ...


class InferenceServer:
    """Acts for whatever rows are waiting, with the newest weights, and keeps the recurrent state of each env.

    The engine joins the waiting calls of all runners into one call of the policy: no runner waits for a batch
    to be full.
    """

    kind = "acting"
    restart_fresh = True  # runners continue; their rows begin new trajectories

    def __init__(
        self,
        policy: Policy,
        recorder: EnvRecorder,
        exploration: Exploration,
        queue: RateLimitedSink[Any],
        weights: WeightSource,
        name: str = "inference",
    ) -> None:
        self.policy, self.recorder, self.exploration, self.name = policy, recorder, exploration, name
        self._sender, self._weights = ReplaySender(queue), WeightReader(weights, policy)
        self.device = next(policy.parameters()).device
        self.state = move(policy.initial_state(recorder.envs), "cpu")
        self.explore = exploration.initial(recorder.envs, torch.device("cpu"))
        self.acting = torch.zeros(recorder.envs, dtype=torch.bool)  # envs whose action has no result yet
        self.runs: dict[int, int] = {}  # first env of a runner -> number of its starts
        self.env_steps = self.dropped_steps = 0
        self._rows, self._calls = 0, 0  # since the last step

    def step(self) -> Metrics | None:
        """Load newer weights if they have arrived; return metrics of the calls since the last step."""
        lag = self._weights.refresh()
        if not self._calls and lag is None:
            return None
        metrics: Metrics = {} if lag is None else {"policy/lag": lag}
        if self._calls:
            metrics[f"{self.name}/batch_rows"] = self._rows / self._calls
        self._rows = self._calls = 0
        return metrics

    def register(self, first: int, envs: int) -> int:
        """Begin new episodes in a runner's envs; return how often the runner was started before.

        Drops the unfinished trajectories of a runner that was restarted.
        """
        ids = torch.arange(first, first + envs)
        self.dropped_steps += self.recorder.reset(ids)
        self.acting[ids] = False
        self.runs[first] = self.runs.get(first, -1) + 1
        return self.runs[first]

    @batched
    def act(self, ids: Tensor, message: RunnerStep) -> Tensor | None:
        """Record the step of the envs `ids` and return their next actions.

        None if the learner is behind or there are no weights yet: call again with the same step.
        """
        if self._weights.version < 0:
            self._weights.refresh()
        if self._weights.version < 0 or not self._sender.can_send():
            return None
        step = message.step()
        self._record(ids, step)
        state = select_rows(self.state, ids)
        obs = {name: x.to(self.device) for name, x in step.obs.items()}
        output = self.policy.act(obs, move(state, self.device), self.explore[ids].to(self.device))
        output = PolicyOutput(
            move(output.action, "cpu"), move(output.state, "cpu"), move(output.extras, "cpu")
        )
        self.recorder.on_action(ids, step.obs, output, state, self._weights.version)
        self._write_state(ids, output.state)
        self.acting[ids] = True
        self._rows, self._calls = self._rows + len(ids), self._calls + 1
        return output.action

    def _write_state(self, ids: Tensor, state: State) -> None:
        if state is not None:
            pytree.tree_map(lambda own, new: own.index_copy_(0, ids, new), self.state, state)

    def _record(self, ids: Tensor, step: Step) -> None:
        """Record the results of earlier actions, and begin episodes where they start."""
        known = self.acting[ids]
        if bool(known.all()):
            trajectories = self.recorder.on_step(ids, step)
        else:  # the first step of a runner, or of all runners after a restart of this server
            self.recorder.reset(ids[~known])
            part = select_step(step, known)
            trajectories = self.recorder.on_step(ids[known], part) if bool(known.any()) else ()
        for trajectory in trajectories:
            self._sender.send(trajectory)
        started = step.started | ~known
        self.env_steps += int(step.valid.sum())
        mask = torch.zeros(self.recorder.envs, dtype=torch.bool)
        mask[ids] = started
        self.explore = self.exploration.update(self.explore, mask, self.env_steps)
        if self.state is not None and bool(started.any()):
            state = move(select_rows(self.state, ids), self.device)
            self._write_state(ids, move(self.policy.reset_state(state, started), "cpu"))

    def gauges(self) -> Metrics:
        """Return the version of the weights and the steps dropped with restarted runners."""
        return {
            f"{self.name}/version": self._weights.version,
            f"{self.name}/dropped_steps": self.dropped_steps,
        }


def move(value: T, device: torch.device | str) -> T:
    """Return nested tensors on `device`, themselves if they are there."""
    moved: T = pytree.tree_map_only(Tensor, lambda x: x.to(device), value)
    return moved


def select_rows(state: State, ids: Tensor) -> State:
    """Return the rows `ids` of a recurrent state; None if there is none."""
    if state is None:
        return None
    rows: State = pytree.tree_map(lambda x: x[ids], state)
    return rows


def select_step(step: Step, rows: Tensor) -> Step:
    """Return some rows of a step."""
    obs = {name: x[rows] for name, x in step.obs.items()}
    same = step.next_obs is step.obs
    next_obs = obs if same else {name: x[rows] for name, x in step.next_obs.items()}
    return Step(
        obs, next_obs, step.reward[rows], step.terminated[rows], step.truncated[rows], step.valid[rows]
    )
