"""Worlds of a few lines whose right answers are known: for tests, docs and engine trials."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, Self

from troop.core.config import bounded, suggest
from troop.core.env import OBS, PRIVILEGED, Continuous, Discrete, EnvSpec, Field, VectorEnv
from troop.core.errors import BadInput
from troop.envs.guard import EnvGuard
from troop.envs.toy.worlds import Chain, Clock, Countdown, Faulty, PointMass, Sleepy

Autoreset = Literal["same_step", "next_step"]
Fault = Literal["nan_obs", "inf_obs", "nan_reward", "inf_reward"]


@dataclass(frozen=True)
class Toy:
    """A toy env by name; `limit` is its length in steps."""

    id: str = "Clock"
    envs: int = bounded(4, low=1)
    limit: int = bounded(10, low=1)
    autoreset: Autoreset = "same_step"
    discrete: bool = False  # two choices (0 acts as -1, 1 as +1) in place of one number
    privileged: bool = False  # also give the elapsed share of `limit` as `privileged`
    seconds: float = bounded(0.0, low=0.0)  # what a vector step of Sleepy takes
    faults: tuple[tuple[int, int, Fault], ...] = ()  # Faulty: (vector step since reset, row, what)

    @property
    def spec(self) -> EnvSpec:
        """Shapes and names."""
        obs = {OBS: Field((_world(self.id).width(self),))}
        if self.privileged:
            obs[PRIVILEGED] = Field((1,))
        action = Discrete(2) if self.discrete else Continuous(1)
        limit = None if self.id == "Countdown" else _world(self.id).steps(self)
        return EnvSpec(f"toy:{self.id}", obs, action, self.envs, limit)

    def make(self, seed: int, device: str = "cpu") -> VectorEnv:
        """The live env."""
        return EnvGuard(_world(self.id)(self, seed, device))

    def with_envs(self, envs: int) -> Self:
        """The same env with another number of copies."""
        return dataclasses.replace(self, envs=envs)

    def for_evaluation(self) -> Self:
        """The same: rewards are as the env gives them."""
        return self


WORLDS: dict[str, type[Clock]] = {
    world.__name__: world for world in (Clock, Countdown, Chain, PointMass, Faulty, Sleepy)
}


def _world(name: str) -> type[Clock]:
    if name in WORLDS:
        return WORLDS[name]
    close = suggest(name, WORLDS) or list(WORLDS)
    raise BadInput(f"Unknown toy env '{name}'; did you mean '{close[0]}'?")
