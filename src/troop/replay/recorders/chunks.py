"""ChunkRecorder: rollouts of several vector steps with initial priorities, for actors."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from troop.core.algorithm import Policy, PolicyOutput
from troop.core.batch import NStep, Rollout, State
from troop.core.env import Obs, Step
from troop.replay.recorders.initial_priority import StepValues, n_step_td_error
from troop.replay.recorders.steps import StepRecorder


@dataclass(frozen=True, slots=True)
class PendingStep:
    """One vector step as received; rollouts and priorities are computed for a whole chunk at once."""

    obs: Obs
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    closing: Rollout | None = None  # closing rows that follow some of these
    q: Tensor | None = None  # the policy's Q(obs, action)
    value: Tensor | None = None  # the policy's V(obs)
    next_value: Tensor | None = None  # V of the final observation where there are closing rows; NaN elsewhere


class ChunkRecorder:
    """Returns `length` vector steps at a time, in order, each row once.

    With a `policy`, rows are delayed until their n-step window is complete, and their extras hold its |TD
    error| as "priority". It is computed from `q` and `value`, which the policy returns with each action.
    The policy is called again only for observations that it does not act on: final observations of backends
    that reset within the step, and those at forced resets.
    """

    def __init__(
        self, envs: int, first_stream: int, length: int, experience: NStep, policy: Policy | None = None
    ) -> None:
        self.steps = StepRecorder(envs, first_stream)
        self.length, self.experience, self.policy = length, experience, policy
        self.pending: list[PendingStep] = []
        self._policy_extras: dict[str, Tensor] = {}

    @property
    def streams(self) -> Tensor:
        """The streams it records."""
        return self.steps.streams

    def on_action(self, obs: Obs, output: PolicyOutput, state: State = None, version: int = -1) -> None:
        """Record observation, action and value estimates."""
        self.steps.on_action(obs, output)
        self._policy_extras = output.extras

    def on_step(self, step: Step) -> list[Rollout]:
        """Record the step; return a chunk every `length` vector steps."""
        closing = next(iter(self.steps.closing_rows(step)), None)
        q = self._policy_extras.get("q") if self.policy is not None else None
        value = self._policy_extras["value"] if q is not None else None
        next_value = None
        if q is not None and closing is not None:
            next_value = self._final_values(closing, step.reward)
        outcome = (step.reward, step.terminated, step.truncated, step.valid)
        self.pending.append(
            PendingStep(self.steps.obs, self.steps.action, *outcome, closing, q, value, next_value)
        )
        delay = 0 if q is None else self.experience.n
        return self._take(self.length) if len(self.pending) >= self.length + delay else []

    def flush(self, obs: Obs) -> list[Rollout]:
        """Return all pending rows, and one closing row per stream with the observation `obs`."""
        if self.pending and self.pending[-1].q is not None:
            value, action = self._values(obs), torch.zeros_like(self.pending[-1].action)
            zero = torch.zeros_like(value)
            false = zero.bool()
            self.pending.append(PendingStep(obs, action, zero, false, false, false, None, zero, value))
            return self._take(len(self.pending))
        return (self._take(len(self.pending)) if self.pending else []) + self.steps.flush(obs)

    def _final_values(self, closing: Rollout, like: Tensor) -> Tensor:
        values = torch.full_like(like, torch.nan)
        values[closing.streams - self.streams[0]] = self._values({k: x[0] for k, x in closing.obs.items()})
        return values

    def _values(self, obs: Obs) -> Tensor:
        """Return the policy's V(obs) of observations that it does not act on."""
        assert self.policy is not None
        first = next(iter(obs.values()))
        no_exploration = torch.zeros(len(first), device=first.device)
        output = self.policy.act(obs, self.policy.initial_state(len(first)), no_exploration)
        return output.extras["value"]

    def _take(self, count: int) -> list[Rollout]:
        """Remove the first `count` vector steps; return them as few rollouts, split after closing rows."""
        priority = self._priorities(count)
        taken, self.pending = self.pending[:count], self.pending[count:]
        rollouts: list[Rollout] = []
        start = 0
        for end, step in enumerate(taken, 1):
            if step.closing is not None or end == count:
                extras = {} if priority is None else {"priority": priority[start:end]}
                rollouts.append(self._stack(taken[start:end], extras))
                start = end
            if step.closing is not None:
                rollouts.append(step.closing)
        return rollouts

    def _stack(self, steps: list[PendingStep], extras: dict[str, Tensor]) -> Rollout:
        obs = {name: torch.stack([step.obs[name] for step in steps]) for name in steps[0].obs}
        action = torch.stack([step.action for step in steps])
        return Rollout(self.streams, obs, action, *_stack_outcomes(steps), extras)

    def _priorities(self, count: int) -> Tensor | None:
        last = self.pending[-1]
        if last.q is None:
            return None
        nan = torch.full_like(last.q, torch.nan)
        next_value = torch.stack(
            [nan if step.next_value is None else step.next_value for step in self.pending]
        )
        q, value = (torch.stack([getattr(step, name) for step in self.pending]) for name in ("q", "value"))
        steps = StepValues(q, value, next_value, *_stack_outcomes(self.pending))
        return n_step_td_error(steps, count, self.experience)

    def state_dict(self) -> dict[str, Any]:
        """Return the pending steps."""
        return {"pending": [_as_dict(step) for step in self.pending]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.pending = []
        for fields in state["pending"]:
            closing = None if fields["closing"] is None else Rollout(**fields["closing"])
            self.pending.append(PendingStep(**fields | {"closing": closing}))


def _stack_outcomes(steps: list[PendingStep]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return reward, terminated, truncated and closing, [T, B]; rows that are not valid end no episode."""
    names = ("reward", "terminated", "truncated", "valid")
    reward, terminated, truncated, valid = (torch.stack([getattr(s, n) for s in steps]) for n in names)
    return reward, terminated & valid, truncated & valid, ~valid


def _as_dict(value: PendingStep | Rollout) -> dict[str, Any]:
    """Return the fields, also of a nested Rollout; unlike dataclasses.asdict, tensors are not copied."""
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {name: _as_dict(x) if isinstance(x, Rollout) else x for name, x in fields.items()}
