"""An env whose vector steps take longer than they must: as if its simulator were elsewhere."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from troop.core.config import bounded
from troop.core.env import EnvConfig, EnvSpec, Obs, Step, VectorEnv


@dataclass(frozen=True)
class Slowed:
    """Any env, each vector step of which takes `seconds`; evaluations are as quick as they can be."""

    env: EnvConfig
    seconds: float = bounded(0.02, low=0)

    @property
    def id(self) -> str:
        """As that of the env inside."""
        return self.env.id

    @property
    def envs(self) -> int:
        """As many."""
        return self.env.envs

    @property
    def spec(self) -> EnvSpec:
        """The same."""
        return self.env.spec

    def make(self, seed: int, device: str = "cpu") -> Delayed:
        """The live env."""
        return Delayed(self.env.make(seed, device), self.seconds)

    def with_envs(self, envs: int) -> Self:
        """The same with another number of copies."""
        return dataclasses.replace(self, env=self.env.with_envs(envs))

    def for_evaluation(self) -> Self:
        """The env as it is reported, not slowed."""
        return dataclasses.replace(self, env=self.env.for_evaluation(), seconds=0.0)


class Delayed:
    """A VectorEnv that gives its answers later."""

    def __init__(self, env: VectorEnv, seconds: float) -> None:
        self.env, self.spec, self.seconds, self.due = env, env.spec, seconds, 0.0

    def reset(self, seed: int) -> Step:
        """At once."""
        return self.env.reset(seed)

    def send(self, action: Tensor) -> None:
        """Begin a step."""
        self.due = time.monotonic() + self.seconds
        self.env.send(action)

    def recv(self) -> Step:
        """Its answer, not before it is due."""
        step = self.env.recv()
        time.sleep(max(0.0, self.due - time.monotonic()))
        return step

    def step(self, action: Tensor) -> Step:
        """Both."""
        self.send(action)
        return self.recv()

    def restart(self, rows: Tensor) -> Obs:
        """At once."""
        return self.env.restart(rows)

    def close(self) -> None:
        """Close it."""
        self.env.close()
