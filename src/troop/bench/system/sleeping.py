"""An env and a learner that only sleep, as if simulator and accelerator were on other machines.

They use almost no CPU, so a benchmark with them measures the orchestration alone.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from troop.core.algorithm import Policy, PolicyOutput, UpdateResult
from troop.core.batch import NStep, State, Trajectory, TrajectorySpec, Transition
from troop.core.env import OBS, Discrete, EnvSpec, Field, Obs, Step
from troop.core.exploration import LinearSchedule
from troop.core.peers import NO_PEERS, Peers


@dataclass(frozen=True)
class SleepingEnvConfig:
    """An env whose vector steps take `seconds` and return constant observations."""

    envs: int = 4
    seconds: float = 0.005
    id: str = "sleeping"
    seconds_per_env: float = 0.0  # added to `seconds` for each env
    slow_seed: int | None = None  # a vector env made with this seed is `slowdown` times slower
    slowdown: float = 5.0
    shape: tuple[int, ...] = (8,)  # of an observation; images are uint8

    @property
    def spec(self) -> EnvSpec:
        """Eight numbers or an image observed, two discrete actions."""
        dtype = torch.uint8 if len(self.shape) == 3 else torch.float32
        return EnvSpec(self.id, {OBS: Field(self.shape, dtype)}, Discrete(2), self.envs)

    def make(self, seed: int, device: str = "cpu") -> SleepingEnv:
        """Build the vector env; the device has no effect."""
        seconds = self.seconds + self.seconds_per_env * self.envs
        return SleepingEnv(self, seconds * (self.slowdown if seed == self.slow_seed else 1.0))

    def with_envs(self, envs: int) -> Self:
        """Return a copy with another number of envs."""
        return dataclasses.replace(self, envs=envs)

    def for_evaluation(self) -> Self:
        """Return the same config."""
        return self


class SleepingEnv:
    """A vector env whose `recv` sleeps until `seconds` after `send`."""

    def __init__(self, cfg: SleepingEnvConfig, seconds: float) -> None:
        self.seconds, self.spec, self.due = seconds, cfg.spec, 0.0
        field = self.spec.obs[OBS]
        false = torch.zeros(cfg.envs, dtype=torch.bool)
        obs = {OBS: torch.zeros(cfg.envs, *field.shape, dtype=field.dtype)}
        self.first_step = Step(obs, obs, torch.zeros(cfg.envs), false, false, false)
        self.next_step = dataclasses.replace(self.first_step, valid=~false)

    def reset(self, seed: int) -> Step:
        """Return the first observations without delay."""
        return self.first_step

    def send(self, action: Tensor) -> None:
        """Start a step of `seconds`."""
        self.due = time.monotonic() + self.seconds

    def recv(self) -> Step:
        """Sleep until the step is due; return it."""
        time.sleep(max(0.0, self.due - time.monotonic()))
        return self.next_step

    def step(self, action: Tensor) -> Step:
        """Send and receive."""
        self.send(action)
        return self.recv()

    def restart(self, rows: Tensor) -> Obs:
        """Return the first observations of these rows."""
        return {name: value[rows] for name, value in self.first_step.obs.items()}

    def close(self) -> None:
        """Do nothing; no resource is held."""


class NullPolicy(Policy):
    """A policy of 1,000 unused weights that always returns action 0, after sleeping `seconds_per_row`."""

    def __init__(self, seconds_per_row: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1000))
        self.seconds_per_row = seconds_per_row
        self.outputs: dict[int, PolicyOutput] = {}  # by number of rows

    def act(self, obs: Obs, state: State, explore: Tensor) -> PolicyOutput:
        """Return action 0 for each row."""
        rows = explore.shape[0]
        if self.seconds_per_row:
            time.sleep(rows * self.seconds_per_row)
        if rows not in self.outputs:
            self.outputs[rows] = PolicyOutput(torch.zeros(rows, dtype=torch.int64))
        return self.outputs[rows]


@dataclass(frozen=True)
class SleepingLearnerConfig:
    """An algorithm whose updates sleep for `seconds`."""

    seconds: float = 0.02

    @property
    def experience(self) -> NStep:
        """One-step transitions."""
        return NStep()

    @property
    def exploration(self) -> LinearSchedule:
        """No exploration."""
        return LinearSchedule(0.0, 0.0, 1)

    def unsupported_reason(self, spec: EnvSpec) -> str | None:
        """Return None: every env is supported."""
        return None

    def policy(self, spec: EnvSpec) -> NullPolicy:
        """Build a policy without computation."""
        return NullPolicy()

    def algorithm(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> SleepingLearner:
        """Build the learner; only `seconds` has an effect."""
        return SleepingLearner(self.seconds)


class SleepingLearner:
    """A learner whose updates sleep and return priority 1 for every row."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.consecutive_skips = seconds, torch.zeros(())
        self.policy: Policy = NullPolicy()

    def update(self, batch: Transition) -> UpdateResult:
        """Sleep for the duration of an update."""
        time.sleep(self.seconds)
        return UpdateResult({}, torch.ones(len(batch)))

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing; there is no state."""


@dataclass(frozen=True)
class SleepingTrajectoryConfig:
    """An algorithm over trajectories of `length` steps whose updates sleep for `seconds`."""

    length: int = 32
    seconds: float = 0.005
    seconds_per_row: float = 0.0  # of the policy

    @property
    def experience(self) -> TrajectorySpec:
        """Trajectories."""
        return TrajectorySpec(self.length)

    @property
    def exploration(self) -> LinearSchedule:
        """No exploration."""
        return LinearSchedule(0.0, 0.0, 1)

    def unsupported_reason(self, spec: EnvSpec) -> str | None:
        """Return None: every env is supported."""
        return None

    def policy(self, spec: EnvSpec) -> NullPolicy:
        """Build a policy that only sleeps."""
        return NullPolicy(self.seconds_per_row)

    def algorithm(
        self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu"
    ) -> SleepingTrajectoryLearner:
        """Build the learner."""
        return SleepingTrajectoryLearner(self, self.policy(spec), peers)


class SleepingTrajectoryLearner:
    """Sleeps, then meets its peers as an update with one gradient does."""

    def __init__(self, cfg: SleepingTrajectoryConfig, policy: Policy, peers: Peers) -> None:
        self.cfg, self.policy, self.peers, self.consecutive_skips = cfg, policy, peers, torch.zeros(())

    def update(self, batch: Trajectory) -> UpdateResult:
        """Sleep for the duration of an update."""
        time.sleep(self.cfg.seconds)
        self.peers.mean(torch.zeros(1000))
        return UpdateResult({})

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing; there is no state."""
