"""A learner that only sleeps, as if its accelerator were on another machine; `sleeping_env.py` is its env.

They use almost no CPU, so a benchmark with them measures the orchestration alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from troop.core.algorithm import Policy, PolicyOutput, UpdateResult
from troop.core.batch import NStep, State, Trajectory, TrajectorySpec, Transition
from troop.core.env import EnvSpec, Obs
from troop.core.exploration import LinearSchedule
from troop.core.peers import NO_PEERS, Peers


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
