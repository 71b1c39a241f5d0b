"""DelayedEnv: any env with vector steps of a given duration, as if its simulator were slow or remote."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from troop.core.config import bounded
from troop.core.env import EnvConfig, EnvSpec, Obs, Step, VectorEnv


@dataclass(frozen=True)
class DelayedEnvConfig:
    """An env whose vector steps take at least `seconds`; evaluation runs without the delay."""

    env: EnvConfig
    seconds: float = bounded(0.02, low=0)

    @property
    def id(self) -> str:
        """The id of the inner env."""
        return self.env.id

    @property
    def envs(self) -> int:
        """The number of copies of the inner env."""
        return self.env.envs

    @property
    def spec(self) -> EnvSpec:
        """The spec of the inner env."""
        return self.env.spec

    def make(self, seed: int, device: str = "cpu") -> DelayedEnv:
        """Build the vector env."""
        return DelayedEnv(self.env.make(seed, device), self.seconds)

    def with_envs(self, envs: int) -> Self:
        """Return a copy with another number of envs."""
        return dataclasses.replace(self, env=self.env.with_envs(envs))

    def for_evaluation(self) -> Self:
        """Return the inner env's evaluation config without delay."""
        return dataclasses.replace(self, env=self.env.for_evaluation(), seconds=0.0)


class DelayedEnv:
    """A vector env whose `recv` returns no earlier than `seconds` after `send`."""

    def __init__(self, env: VectorEnv, seconds: float) -> None:
        self.env, self.spec, self.seconds, self.due = env, env.spec, seconds, 0.0

    def reset(self, seed: int) -> Step:
        """Reset all envs without delay."""
        return self.env.reset(seed)

    def send(self, action: Tensor) -> None:
        """Start a step."""
        self.due = time.monotonic() + self.seconds
        self.env.send(action)

    def recv(self) -> Step:
        """Return the step, not before it is due."""
        step = self.env.recv()
        time.sleep(max(0.0, self.due - time.monotonic()))
        return step

    def step(self, action: Tensor) -> Step:
        """Send and receive."""
        self.send(action)
        return self.recv()

    def restart(self, rows: Tensor) -> Obs:
        """Restart these rows without delay."""
        return self.env.restart(rows)

    def close(self) -> None:
        """Close the inner env."""
        self.env.close()
