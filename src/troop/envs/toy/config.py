"""Config of the toy envs: small envs with known values, for tests, docs and engine benchmarks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, Self

from troop.core.config import bounded, suggest
from troop.core.env import OBS, PRIVILEGED, EnvSpec, Field, VectorEnv
from troop.core.env_calls import env_call
from troop.core.errors import BadInput
from troop.core.numpy_env import NumPyEnv
from troop.envs.guard import EnvGuard
from troop.envs.hidden_columns import HiddenColumnsEnv, with_hidden_columns
from troop.envs.last_step import LastStepEnv, last_step_spec
from troop.envs.tensor_env import to_tensors
from troop.envs.toy.envs import Chain, Clock, Countdown, Faulty, PointMass, Reach, Sleepy
from troop.envs.toy.memory import Cue, Recall

Autoreset = Literal["same_step", "next_step"]
Fault = Literal["nan_obs", "inf_obs", "nan_reward", "inf_reward"]


@dataclass(frozen=True)
class Toy:
    """Config of a toy env by name; `limit` sets the length of an episode in steps."""

    id: str = "Clock"
    """Name of the toy env."""
    envs: int = bounded(4, low=1)
    """Envs that step together."""
    limit: int = bounded(10, low=1)
    """Length of an episode in steps."""
    autoreset: Autoreset = "same_step"
    """Autoreset mode, as of a Gymnasium vector env."""
    discrete: bool = False
    """Two discrete actions (0 acts as -1, 1 as +1) instead of one continuous action."""
    privileged: bool = False
    """Add elapsed steps / `limit` as the observation `privileged`."""
    seconds: float = bounded(0.0, low=0.0)
    """Sleepy: duration of a vector step."""
    faults: tuple[tuple[int, int, Fault], ...] = ()
    """Faulty: (vector step since reset, row, fault)."""
    cues: int = bounded(2, low=2)
    """Cue-v0: number of cues and of actions."""
    delay: int = bounded(20, low=1)
    """Cue-v0: steps between the cue and the question."""
    hide: tuple[int, ...] = ()
    """Columns of the vector `obs`, counted from 0, that are left out: a partially observable task."""
    last_step: bool = False
    """Add the last action and the last reward, clipped to [-1, 1], to the observations."""

    @property
    def spec(self) -> EnvSpec:
        """The spec. Raises BadInput for an unknown name."""
        env = _toy_env(self.id)
        obs = {OBS: env.obs_field(self)}
        if self.privileged:
            obs[PRIVILEGED] = Field((1,))
        limit = env.time_limit(self) if env.truncates else None
        spec = EnvSpec(f"toy:{self.id}", obs, env.action_spec(self), self.envs, limit)
        spec = with_hidden_columns(spec, self.hide)
        return last_step_spec(spec) if self.last_step else spec

    def make(self, seed: int, device: str = "cpu") -> VectorEnv:
        """Build the env, guarded against non-finite rows."""
        return to_tensors(self.make_numpy(seed), device)

    def make_numpy(self, seed: int) -> NumPyEnv:
        """Build the same env without torch."""
        with env_call(self.id, "__init__"):
            plain = dataclasses.replace(self, hide=(), last_step=False)
            env: NumPyEnv = _toy_env(self.id)(plain, seed)
        env = HiddenColumnsEnv(env, self.hide) if self.hide else env
        return EnvGuard(LastStepEnv(env) if self.last_step else env)

    def with_envs(self, envs: int) -> Self:
        """Return a copy of this config with `envs` envs."""
        return dataclasses.replace(self, envs=envs)

    def for_evaluation(self) -> Self:
        """Return this config: training does not change the task."""
        return self


TOY_ENVS: dict[str, type[Clock]] = {
    env.__name__: env for env in (Clock, Countdown, Chain, PointMass, Reach, Recall, Faulty, Sleepy)
} | {"Cue-v0": Cue}


def _toy_env(name: str) -> type[Clock]:
    if name in TOY_ENVS:
        return TOY_ENVS[name]
    similar = suggest(name, TOY_ENVS) or list(TOY_ENVS)
    raise BadInput(f"Unknown toy env {name!r}; did you mean '{similar[0]}'?")
