"""InferenceServer: one policy acts for the envs of many runners, and records their steps (SEED RL)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from troop.core.algorithm import Policy, PolicyOutput
from troop.core.batch import Rollout, State, Trajectory, select_state
from troop.core.env import EnvSpec, Obs, Step
from troop.core.errors import BadInput
from troop.core.exploration import Exploration
from troop.core.flow import RateLimitedSink, WeightSource
from troop.core.remote import BatchLimits, batched, zero_copy
from troop.core.role import Metrics
from troop.roles.replay_sender import ReplaySender
from troop.roles.runner_step import RunnerStep
from troop.roles.weights import WeightReader

T = TypeVar("T")


class EnvRecorder(Protocol):
    """Records the steps of envs that are given by their numbers."""

    envs: int
    first_stream: int  # number of the first env's stream in the replay

    def on_action(
        self, ids: Tensor, obs: Obs, output: PolicyOutput, state: State = None, version: int = -1
    ) -> None:
        """Record that the policy of this version returned `output` in the envs `ids`."""
        ...

    def on_step(self, ids: Tensor, step: Step) -> Sequence[Trajectory | Rollout]:
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

    def __init__(
        self,
        spec: EnvSpec,
        policy: Policy,
        recorder: EnvRecorder,
        exploration: Exploration,
        queue: RateLimitedSink[Any],
        weights: WeightSource,
        name: str = "inference",
        batch_limits: BatchLimits | None = None,
    ) -> None:
        self.spec, self.policy, self.recorder, self.exploration = spec, policy, recorder, exploration
        self.name, self.batch_limits = name, batch_limits or BatchLimits()
        self._sender, self._weights = ReplaySender(queue), WeightReader(weights, policy)
        self.device = next(policy.parameters()).device
        self.state = move(policy.initial_state(recorder.envs), "cpu")
        self.explore = exploration.initial(recorder.envs, torch.device("cpu"))
        self.acting = torch.zeros(recorder.envs, dtype=torch.bool)  # envs whose action has no result yet
        self._acting = self.acting.numpy()  # the same memory
        self.runs = np.full(recorder.envs, -1)  # of each env's runner: how often it was started before
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
        ids = np.arange(first, first + envs)
        self._drop(ids)
        self.runs[ids] = run = int(self.runs[ids].max()) + 1
        return run

    def _drop(self, ids: np.ndarray) -> None:
        """Drop and count the unfinished trajectories of envs that begin new episodes."""
        rows = torch.from_numpy(ids)
        self.dropped_steps += self.recorder.reset(rows)
        self._sender.end_streams(rows + self.recorder.first_stream)
        self.acting[rows] = False

    def check_observations(self, runner: str, fields: dict[str, tuple[str, tuple[int, ...]]]) -> None:
        """Raise BadInput unless the observations of a runner have the dtypes and shapes of the spec."""
        expected = {name: (field.dtype_name, field.shape) for name, field in self.spec.obs.items()}
        for name in sorted(expected.keys() | fields.keys()):
            own, other = expected.get(name), fields.get(name)
            if own is None or other is None or (own[0], tuple(own[1])) != (other[0], tuple(other[1])):
                raise BadInput(
                    f"The observation '{name}' of {runner} is {_describe(other)}; the policy of {self.name} "
                    f"takes {_describe(own)}. Let all runners step the same env."
                )

    @zero_copy
    @batched
    def act(self, ids: np.ndarray, runs: np.ndarray, message: RunnerStep) -> np.ndarray | None:
        """Record the step of the envs `ids` and return their next actions.

        `runs` is what `register` returned to the runner of each env. Rows of a process that was replaced
        meanwhile are neither recorded nor acted on; their actions are 0. None if the learner is behind or
        there are no weights yet: call again with the same step. Raises ValueError if an env occurs twice.
        """
        if self._weights.version < 0:
            self._weights.refresh()
        if self._weights.version < 0 or not self._sender.can_send():
            return None
        step, newest = _to_tensors(message), self._newest_rows(ids, runs)
        if newest is None:
            return self._act(torch.from_numpy(ids), step).action.numpy()
        step = select_step(step, torch.from_numpy(newest))
        action = self._act(torch.from_numpy(ids[newest]), step).action.numpy()
        actions = np.zeros((len(ids), *action.shape[1:]), action.dtype)
        actions[newest] = action
        return actions

    def _newest_rows(self, ids: np.ndarray, runs: np.ndarray) -> np.ndarray | None:
        """Return bool [N]: rows of the newest process of each env; adopt processes that are newer.

        None if all rows are and no process is newer than those known, as in almost every call.
        """
        newest: np.ndarray = self.runs[ids] == runs
        if newest.all() and np.bincount(ids).max() == 1:
            return None
        known = self.runs.copy()
        np.maximum.at(self.runs, ids, runs)  # this server may have been restarted after `register`
        newest = runs == self.runs[ids]
        replaced = newest & (known[ids] >= 0) & (known[ids] < runs)
        if replaced.any():
            self._drop(ids[replaced])
        if len(np.unique(ids[newest])) < np.count_nonzero(newest):
            raise ValueError(f"an env occurs twice among the rows of envs {ids[newest].tolist()}")
        return newest

    def _act(self, ids: Tensor, step: Step) -> PolicyOutput:
        self._record(ids, step)
        self._rows, self._calls = self._rows + len(ids), self._calls + 1
        state = select_state(self.state, ids)
        explore, obs, moved = self.explore[ids], step.obs, state
        if self.device.type != "cpu":
            explore, moved = explore.to(self.device), move(state, self.device)
            obs = {name: x.to(self.device) for name, x in obs.items()}
        output = self.policy.act(obs, moved, explore)
        if self.device.type != "cpu":
            output = PolicyOutput(
                move(output.action, "cpu"), move(output.state, "cpu"), move(output.extras, "cpu")
            )
        self.recorder.on_action(ids, step.obs, output, state, self._weights.version)
        self._write_state(ids, output.state)
        return output

    def _write_state(self, ids: Tensor, state: State) -> None:
        if state is not None:
            pytree.tree_map(lambda own, new: own.index_copy_(0, ids, new), self.state, state)

    def _record(self, ids: Tensor, step: Step) -> None:
        """Record the results of earlier actions, and begin episodes where they start."""
        valid, started = int(np.count_nonzero(step.valid.numpy())), None
        if valid < len(ids) or step.next_obs is not step.obs:
            started = step.started
        if self._acting[ids.numpy()].all():
            trajectories = self.recorder.on_step(ids, step)
        else:  # the first step of a runner, or of all runners after a restart of this server
            known = self.acting[ids]
            started = step.started | ~known
            self.recorder.reset(ids[~known])
            self._sender.end_streams(ids[~known] + self.recorder.first_stream)
            part = select_step(step, known)
            trajectories = self.recorder.on_step(ids[known], part) if bool(known.any()) else ()
            self.acting[ids] = True
        for trajectory in trajectories:
            self._sender.send(trajectory)
        self.env_steps += valid
        if started is None or not bool(started.any()):
            self.explore = self.exploration.update(self.explore, None, self.env_steps)
            return
        mask = torch.zeros(self.recorder.envs, dtype=torch.bool)
        mask[ids] = started
        self.explore = self.exploration.update(self.explore, mask, self.env_steps)
        if self.state is not None:
            begun = ids[started]
            initial = move(self.policy.initial_state(self.recorder.envs), "cpu")
            self._write_state(begun, select_state(initial, begun))

    def state_dict(self) -> dict[str, Any]:
        """Return the counts; trajectories, recurrent states and exploration values begin anew."""
        counts = {"env_steps": self.env_steps, "dropped_steps": self.dropped_steps}
        return {"counts": counts | {"runs": torch.from_numpy(self.runs)}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the counts: exploration schedules go on, and runners that register do not repeat a seed."""
        if "counts" not in state:  # of a run of an earlier version
            return
        counts = state["counts"]
        self.env_steps, self.dropped_steps = int(counts["env_steps"]), int(counts["dropped_steps"])
        runs = counts["runs"].cpu().numpy()
        # In a run that is resumed with another number of envs every runner registers.
        self.runs[:] = runs if len(runs) == len(self.runs) else runs.max(initial=-1)

    def gauges(self) -> Metrics:
        """Return the version of the weights and the steps dropped with restarted runners."""
        return {
            f"{self.name}/version": self._weights.version,
            f"{self.name}/dropped_steps": self.dropped_steps,
        }


def _to_tensors(message: RunnerStep) -> Step:
    """Return the step of a message; its tensors share the memory of the arrays."""
    obs = next_obs = {name: torch.from_numpy(x) for name, x in message.obs.items()}
    if message.next_obs is not None:
        next_obs = {name: torch.from_numpy(x) for name, x in message.next_obs.items()}
    reward, valid = torch.from_numpy(message.reward), torch.from_numpy(message.valid)
    terminated, truncated = torch.from_numpy(message.terminated), torch.from_numpy(message.truncated)
    return Step(obs, next_obs, reward, terminated, truncated, valid)


def _describe(field: tuple[str, tuple[int, ...]] | None) -> str:
    return "missing" if field is None else f"{field[0]} {tuple(field[1])}"


def move(value: T, device: torch.device | str) -> T:
    """Return nested tensors on `device`, themselves if they are there."""
    moved: T = pytree.tree_map_only(Tensor, lambda x: x.to(device), value)
    return moved


def select_step(step: Step, rows: Tensor) -> Step:
    """Return some rows of a step."""
    obs = {name: x[rows] for name, x in step.obs.items()}
    same = step.next_obs is step.obs
    next_obs = obs if same else {name: x[rows] for name, x in step.next_obs.items()}
    return Step(
        obs, next_obs, step.reward[rows], step.terminated[rows], step.truncated[rows], step.valid[rows]
    )
