"""The recorder of actors: pieces of several vector steps, each row with its initial priority."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from troop.core.algorithm import Policy, PolicyOutput
from troop.core.batch import NStep, Rollout
from troop.core.env import Obs, Step
from troop.replay.recorders.initial_priority import ActedSteps, n_step_td_error
from troop.replay.recorders.steps import StepRecorder


@dataclass(frozen=True, slots=True)
class PendingStep:
    """One vector step that waits, as it came: nothing is computed until a whole chunk leaves."""

    obs: Obs
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    closing: Rollout | None = None  # rows behind some of these
    q: Tensor | None = None  # what the policy said
    value: Tensor | None = None
    after: Tensor | None = None  # value of the true successor where there are closing rows; NaN elsewhere


class ChunkRecorder:
    """Hands over `length` vector steps at a time, in order, each row once.

    With a `judge` rows are held back until their n-step window is complete, and leave with its |TD error|:
    `q` and `value`, which the policy told with each action, are all it takes. The judge, the same
    policy, is asked only about observations nobody acts on: those at time limits of backends
    that reset within the step, and those at forced resets.
    """

    def __init__(
        self, envs: int, first: int, length: int, experience: NStep, judge: Policy | None = None
    ) -> None:
        self.steps, self.length, self.experience, self.judge = (
            StepRecorder(envs, first),
            length,
            experience,
            judge,
        )
        self.held: list[PendingStep] = []
        self._extras: dict[str, Tensor] = {}

    @property
    def streams(self) -> Tensor:
        """The streams it records."""
        return self.steps.streams

    def on_action(self, obs: Obs, acted: PolicyOutput) -> None:
        """Remember what was acted on, how, and what the policy thought of it."""
        self.steps.on_action(obs, acted)
        self._extras = acted.extras

    def on_step(self, step: Step) -> list[Rollout]:
        """A chunk every `length` vector steps."""
        closed = self.steps.closed(step)
        closing = closed[0] if closed else None
        q = self._extras.get("q") if self.judge is not None else None
        value = self._extras["value"] if q is not None else None
        after = self._after(closing, step.reward) if q is not None and closing is not None else None
        ends = (step.reward, step.terminated, step.truncated, step.valid)
        self.held.append(PendingStep(self.steps.obs, self.steps.action, *ends, closing, q, value, after))
        waits = 0 if q is None else self.experience.n
        return self._leave(self.length) if len(self.held) >= self.length + waits else []

    def flush(self, obs: Obs) -> list[Rollout]:
        """Everything held, and a closing row per stream at the observation reached."""
        if self.held and self.held[-1].q is not None:
            value, action = self._judged(obs), torch.zeros_like(self.held[-1].action)
            nothing = torch.zeros_like(value)
            never = nothing.bool()
            self.held.append(PendingStep(obs, action, nothing, never, never, never, None, nothing, value))
            return self._leave(len(self.held))
        return (self._leave(len(self.held)) if self.held else []) + self.steps.flush(obs)

    def _after(self, closing: Rollout, like: Tensor) -> Tensor:
        after = torch.full_like(like, torch.nan)
        after[closing.streams - self.streams[0]] = self._judged({k: x[0] for k, x in closing.obs.items()})
        return after

    def _judged(self, obs: Obs) -> Tensor:
        """What the policy thinks of observations it does not act on."""
        assert self.judge is not None
        some = next(iter(obs.values()))
        still = torch.zeros(len(some), device=some.device)
        acted = self.judge.act(obs, self.judge.initial_state(len(some)), still)
        return acted.extras["value"]

    def _leave(self, count: int) -> list[Rollout]:
        """The first `count` vector steps as few pieces: a new one begins behind closing rows of some."""
        priority = self._priorities(count)
        leaving, self.held = self.held[:count], self.held[count:]
        pieces: list[Rollout] = []
        begun = 0
        for at, held in enumerate(leaving, 1):
            if held.closing is not None or at == count:
                some = None if priority is None else priority[begun:at]
                pieces.append(self._joined(leaving[begun:at], some))
                begun = at
            if held.closing is not None:
                pieces.append(held.closing)
        return pieces

    def _joined(self, held: list[PendingStep], priority: Tensor | None) -> Rollout:
        obs = {name: torch.stack([h.obs[name] for h in held]) for name in held[0].obs}
        return Rollout(self.streams, obs, torch.stack([h.action for h in held]), *_ends(held), priority)

    def _priorities(self, count: int) -> Tensor | None:
        last = self.held[-1]
        if last.q is None:
            return None
        none = torch.full_like(last.q, torch.nan)
        after = torch.stack([none if held.after is None else held.after for held in self.held])
        q, value = (torch.stack([getattr(held, name) for held in self.held]) for name in ("q", "value"))
        return n_step_td_error(ActedSteps(q, value, after, *_ends(self.held)), count, self.experience)

    def state_dict(self) -> dict[str, Any]:
        """What is held."""
        return {"held": [{k: _plain(v) for k, v in _fields(held).items()} for held in self.held]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self.held = []
        for held in state["held"]:
            closing = None if held["closing"] is None else Rollout(**held["closing"])
            self.held.append(PendingStep(**held | {"closing": closing}))


def _ends(held: list[PendingStep]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Reward, terminated, truncated, closing, [T, B]; the ends of a row that is not valid mean nothing."""
    names = ("reward", "terminated", "truncated", "valid")
    reward, terminated, truncated, valid = (torch.stack([getattr(h, n) for h in held]) for n in names)
    return reward, terminated & valid, truncated & valid, ~valid


def _fields(value: Any) -> dict[str, Any]:  # noqa: ANN401
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _plain(value: Any) -> Any:  # noqa: ANN401
    return _fields(value) if isinstance(value, Rollout) else value
