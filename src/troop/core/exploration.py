"""Exploration schedules: one value per env, which the policy interprets (a noise scale, an epsilon)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class EpsilonLadder:
    """Ape-X's constants (Horgan et al. 2018): env i of N has epsilon_i = base^(1 + alpha i / (N - 1))."""

    base: float = 0.4
    alpha: float = 7.0

    def values(self, rows: int) -> tuple[float, ...]:
        """Return the epsilons of `rows` envs, largest first; a single env has `base`."""
        return tuple(float(self.base ** (1 + self.alpha * i / max(1, rows - 1))) for i in range(rows))


PAPER_LADDER = EpsilonLadder()


class Exploration(Protocol):
    """A schedule of the exploration value of each env row, passed to `Policy.act` as `explore`.

    Any class with these methods is a schedule; one that inherits from `Exploration` may leave out `share` and
    `over_updates`.
    """

    def initial(self, rows: int, device: torch.device) -> Tensor:
        """Return the values of `rows` envs at the start of their first episodes, [rows]."""
        ...

    def update(self, values: Tensor, started: Tensor | None, env_steps: int) -> Tensor:
        """Return the values of the next step, [rows]; may write into `values`.

        `values` are the current ones, `started` [rows] marks envs that start an episode (None: no env does),
        `env_steps` counts the env steps of this collector so far.
        """
        ...

    def per_env(self, rows: int, ladder: EpsilonLadder = PAPER_LADDER) -> tuple[float, ...]:
        """Return one constant value per env, for systems that fix the exploration of each of `rows` envs.

        A schedule that anneals an epsilon over time uses the epsilons of `ladder` instead.
        """
        ...

    def share(self, workers: int) -> Exploration:
        """Return the schedule of one of `workers` workers, each of which counts only its own env steps."""
        return self

    def over_updates(self, updates: Callable[[], int]) -> Exploration:
        """Return the schedule annealed over `updates()`, the updates of all learners, not env steps."""
        return self


@dataclass(frozen=True)
class PerEpisodeUniform(Exploration):
    """A value drawn from [low, high] at the start of each episode and kept until it ends (FastTD3).

    With `logarithmic` its logarithm is uniform: each factor of two between `low` and `high` is as frequent.
    """

    low: float
    high: float
    logarithmic: bool = False

    def initial(self, rows: int, device: torch.device) -> Tensor:
        """Draw a value for each env."""
        return self._value(torch.rand(rows, device=device))

    def _value(self, share: Tensor) -> Tensor:
        """Return the value below which lies this share of the drawn ones."""
        if self.logarithmic:
            return self.low * (self.high / self.low) ** share
        return share * (self.high - self.low) + self.low

    def update(self, values: Tensor, started: Tensor | None, env_steps: int) -> Tensor:
        """Draw new values where an episode starts."""
        if started is None:
            return values
        return torch.where(started, self.initial(len(values), values.device), values)

    def per_env(self, rows: int, ladder: EpsilonLadder = PAPER_LADDER) -> tuple[float, ...]:
        """Return equal steps from `low` to `high` (PQL's mixed noise); a single env has the middle."""
        shares = torch.linspace(0, 1, rows, dtype=torch.float64) if rows > 1 else torch.tensor([0.5])
        return tuple(self._value(shares).tolist())


@dataclass(frozen=True)
class LinearSchedule(Exploration):
    """The same value for all envs, annealed linearly from `start` to `end` over `env_steps` (DQN).

    The first `start_after` env steps have the value `start` and do not count.
    """

    start: float
    end: float
    env_steps: int
    start_after: int = 0

    def initial(self, rows: int, device: torch.device) -> Tensor:
        """Return `start` for every env."""
        return torch.full((rows,), self.start, device=device)

    def update(self, values: Tensor, started: Tensor | None, env_steps: int) -> Tensor:
        """Write the value after `env_steps` into `values`."""
        annealed = max(0, env_steps - self.start_after)
        if self.env_steps:
            fraction = min(1.0, annealed / self.env_steps)
        else:
            fraction = float(env_steps >= self.start_after)
        return values.fill_(self.start + fraction * (self.end - self.start))

    def per_env(self, rows: int, ladder: EpsilonLadder = PAPER_LADDER) -> tuple[float, ...]:
        """Return the epsilons of `ladder`, or `start` for every env if nothing is annealed.

        Noisy nets count from 1: their whole part (noise on) is kept and the epsilon is added to it.
        """
        if self.start == self.end:
            return (self.start,) * rows
        return tuple(math.floor(self.end) + epsilon for epsilon in ladder.values(rows))

    def share(self, workers: int) -> Exploration:
        """Divide all numbers of env steps by `workers`."""
        return dataclasses.replace(
            self, env_steps=self.env_steps // workers, start_after=self.start_after // workers
        )

    def over_updates(self, updates: Callable[[], int]) -> Exploration:
        """Count updates instead of env steps."""
        return OverUpdates(self, updates)


@dataclass(frozen=True)
class OverUpdates(Exploration):
    """A linear schedule that counts the updates that `updates()` returns instead of env steps (Gorila)."""

    schedule: LinearSchedule
    updates: Callable[[], int]

    def initial(self, rows: int, device: torch.device) -> Tensor:
        """Return the schedule's `start` for every env."""
        return self.schedule.initial(rows, device)

    def update(self, values: Tensor, started: Tensor | None, env_steps: int) -> Tensor:
        """Write the value after `updates()` updates into `values`."""
        return self.schedule.update(values, started, self.updates())

    def per_env(self, rows: int, ladder: EpsilonLadder = PAPER_LADDER) -> tuple[float, ...]:
        """Return the constants of the schedule."""
        return self.schedule.per_env(rows, ladder)


@dataclass(frozen=True)
class PerEnv(Exploration):
    """One constant value per env (Ape-X's epsilons, PQL's noise scales)."""

    values: tuple[float, ...]

    def initial(self, rows: int, device: torch.device) -> Tensor:
        """Return the constants; `rows` must be their number."""
        assert rows == len(self.values), f"{rows} envs but {len(self.values)} exploration values"
        return torch.tensor(self.values, device=device)

    def update(self, values: Tensor, started: Tensor | None, env_steps: int) -> Tensor:
        """Return `values` unchanged."""
        return values

    def per_env(self, rows: int, ladder: EpsilonLadder = PAPER_LADDER) -> tuple[float, ...]:
        """Return the constants, whatever `rows` is."""
        return self.values


@dataclass(frozen=True)
class RandomStart(Exploration):
    """Infinity, for uniformly random actions, in the first `env_steps` env steps; then `schedule`."""

    schedule: Exploration
    env_steps: int

    def initial(self, rows: int, device: torch.device) -> Tensor:
        """Return infinity for every env; the schedule draws its values when the random steps are over."""
        return torch.full((rows,), math.inf, device=device)

    def update(self, values: Tensor, started: Tensor | None, env_steps: int) -> Tensor:
        """Return infinity until `env_steps`, then the values of the schedule, counted from there."""
        if env_steps < self.env_steps:
            return values
        if bool(values.isinf().all()):
            return self.schedule.initial(len(values), values.device)
        return self.schedule.update(values, started, env_steps - self.env_steps)

    def per_env(self, rows: int, ladder: EpsilonLadder = PAPER_LADDER) -> tuple[float, ...]:
        """Return the constants of the schedule: a system with constants has no random start."""
        return self.schedule.per_env(rows, ladder)

    def share(self, workers: int) -> Exploration:
        """Divide the random steps among the workers."""
        return RandomStart(self.schedule.share(workers), self.env_steps // workers)

    def over_updates(self, updates: Callable[[], int]) -> Exploration:
        """Anneal the schedule over updates; the random steps remain env steps."""
        return RandomStart(self.schedule.over_updates(updates), self.env_steps)
