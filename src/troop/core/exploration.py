"""How much each row explores: one number a row, whose meaning is the policy's (a noise, an epsilon)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PerEpisodeUniform:
    """A number in [low, high] for each row, drawn when an episode starts and held until it ends (FastTD3)."""

    low: float
    high: float

    def begin(self, rows: int, device: torch.device) -> Tensor:
        """Numbers of fresh episodes, [rows]."""
        return torch.rand(rows, device=device).mul_(self.high - self.low).add_(self.low)

    def at(self, held: Tensor, begun: Tensor | None, env_steps: int) -> Tensor:
        """The numbers now, given those held before and which rows began an episode (None: none did)."""
        if begun is None:
            return held
        return torch.where(begun, self.begin(len(held), held.device), held)


@dataclass(frozen=True)
class LinearSchedule:
    """The same number for all rows, going from `start` to `end` in a line over `env_steps` (DQN)."""

    start: float
    end: float
    env_steps: int

    def begin(self, rows: int, device: torch.device) -> Tensor:
        """All rows at `start`."""
        return torch.full((rows,), self.start, device=device)

    def at(self, held: Tensor, begun: Tensor | None, env_steps: int) -> Tensor:
        """The number at this many env steps."""
        share = min(1.0, env_steps / self.env_steps) if self.env_steps else 1.0
        return held.fill_(self.start + share * (self.end - self.start))


@dataclass(frozen=True)
class PerEnv:
    """One constant number for each row (Ape-X's ladder of epsilons, PQL's ramp of noise)."""

    rates: tuple[float, ...]

    def begin(self, rows: int, device: torch.device) -> Tensor:
        """The constants; as many rows as there are of them."""
        assert rows == len(self.rates), f"{rows} rows but {len(self.rates)} rates of exploration"
        return torch.tensor(self.rates, device=device)

    def at(self, held: Tensor, begun: Tensor | None, env_steps: int) -> Tensor:
        """Always the same."""
        return held


Exploration = PerEpisodeUniform | LinearSchedule | PerEnv
