"""The recorder of actors: pieces of several vector steps, each row with its initial priority."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from troop.core.algorithm import Acted, Policy
from troop.core.batch import NStep, Rows
from troop.core.env import Obs, Step
from troop.replay.steps import Steps
from troop.replay.surprise import Said, surprise


@dataclass(frozen=True, slots=True)
class Held:
    """One vector step that waits: its rows, the closing rows behind some of them, what the policy said."""

    row: Rows
    closing: Rows | None
    q: Tensor | None
    value: Tensor | None
    after: Tensor | None  # value of the true successor where the env was reset within the step; NaN elsewhere


class Chunks:
    """Hands over `length` vector steps at a time, in order, each row once.

    With a `judge` rows are held back until their n-step window is complete, and leave with its |TD error|:
    `q` and `value`, which the policy told with each action, are all it takes. The judge, the same
    policy, is asked only about observations nobody acts on: those at time limits of backends
    that reset within the step, and those at forced resets.
    """

    def __init__(
        self, envs: int, first: int, length: int, experience: NStep, judge: Policy | None = None
    ) -> None:
        self.steps, self.length, self.experience, self.judge = Steps(envs, first), length, experience, judge
        self.held: list[Held] = []
        self._extras: dict[str, Tensor] = {}

    @property
    def streams(self) -> Tensor:
        """The streams it records."""
        return self.steps.streams

    def acted(self, obs: Obs, acted: Acted) -> None:
        """Remember what was acted on, how, and what the policy thought of it."""
        self.steps.acted(obs, acted)
        self._extras = acted.extras

    def came(self, step: Step) -> list[Rows]:
        """A chunk every `length` vector steps."""
        row, *more = self.steps.came(step)
        judged = self.judge is not None and "q" in self._extras
        after = self._after(row, more) if judged else None
        q, value = (self._extras["q"], self._extras["value"]) if judged else (None, None)
        self.held.append(Held(row, more[0] if more else None, q, value, after))
        waits = self.experience.n if judged else 0
        return self._leave(self.length) if len(self.held) >= self.length + waits else []

    def flush(self, obs: Obs) -> list[Rows]:
        """Everything held, and a closing row per stream at the observation reached."""
        closing = self.steps.flush(obs)
        if closing and self.held and self.held[-1].q is not None:
            value = self._judged(obs)
            self.held.append(
                Held(closing[0], None, torch.zeros_like(value), value, torch.full_like(value, torch.nan))
            )
            return self._leave(len(self.held))
        return (self._leave(len(self.held)) if self.held else []) + closing

    def _after(self, row: Rows, more: list[Rows]) -> Tensor:
        after = torch.full_like(row.reward[0], torch.nan)
        if more:
            where = more[0].streams - self.streams[0]
            after[where] = self._judged({name: x[0] for name, x in more[0].obs.items()})
        return after

    def _judged(self, obs: Obs) -> Tensor:
        """What the policy thinks of observations it does not act on."""
        assert self.judge is not None
        some = next(iter(obs.values()))
        still = torch.zeros(len(some), device=some.device)
        acted = self.judge.act(obs, self.judge.initial_state(len(some)), still)
        return acted.extras["value"]

    def _leave(self, count: int) -> list[Rows]:
        """The first `count` vector steps as few pieces: a new one begins behind closing rows of some."""
        priority = self._priorities(count)
        leaving, self.held = self.held[:count], self.held[count:]
        pieces: list[Rows] = []
        begun = 0
        for at, held in enumerate(leaving, 1):
            if held.closing is not None or at == count:
                some = None if priority is None else priority[begun:at]
                pieces.append(_joined([h.row for h in leaving[begun:at]], some))
                begun = at
            if held.closing is not None:
                pieces.append(held.closing)
        return pieces

    def _priorities(self, count: int) -> Tensor | None:
        if self.held[0].q is None:
            return None
        rows = [held.row for held in self.held]
        said = Said(
            *(torch.stack([getattr(held, name) for held in self.held]) for name in ("q", "value", "after")),
            *(torch.cat([getattr(row, name) for row in rows]) for name in ENDS),
        )
        return surprise(said, count, self.experience)

    def state_dict(self) -> dict[str, Any]:
        """What is held."""
        return {"held": [{k: _plain(v) for k, v in _fields(held).items()} for held in self.held]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self.held = []
        for held in state["held"]:
            row, closing = (None if held[name] is None else Rows(**held[name]) for name in ("row", "closing"))
            assert row is not None
            self.held.append(Held(row, closing, held["q"], held["value"], held["after"]))


ENDS = ("reward", "terminated", "truncated", "closing")


def _joined(rows: list[Rows], priority: Tensor | None) -> Rows:
    first = rows[0]
    obs = {name: torch.cat([row.obs[name] for row in rows]) for name in first.obs}
    others = {name: torch.cat([getattr(row, name) for row in rows]) for name in ("action", *ENDS)}
    return Rows(first.streams, obs, **others, priority=priority)


def _fields(value: Any) -> dict[str, Any]:  # noqa: ANN401
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _plain(value: Any) -> Any:  # noqa: ANN401
    return _fields(value) if isinstance(value, Rows) else value
