"""What lives elsewhere: a simulator and an accelerator of which only the waiting is here.

With them the orchestration can be measured apart from the cores of this machine.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from troop.core.algorithm import Policy, PolicyOutput, State, UpdateResult
from troop.core.batch import NStep, Transition
from troop.core.env import OBS, Discrete, EnvSpec, Field, Obs, Step
from troop.core.exploration import LinearSchedule
from troop.core.peers import NO_PEERS, Peers


@dataclass(frozen=True)
class Simulator:
    """An env whose vector steps take `seconds` on another machine; what it shows was made beforehand."""

    envs: int = 4
    seconds: float = 0.005
    id: str = "simulator afar"

    @property
    def spec(self) -> EnvSpec:
        """Eight numbers, two choices."""
        return EnvSpec(self.id, {OBS: Field((8,))}, Discrete(2), self.envs)

    def make(self, seed: int, device: str = "cpu") -> Link:
        """The near end."""
        return Link(self)

    def with_envs(self, envs: int) -> Self:
        """The same with other rows."""
        return dataclasses.replace(self, envs=envs)

    def for_evaluation(self) -> Self:
        """The same."""
        return self


class Link:
    """The near end of a simulator: waits, then shows the same again."""

    def __init__(self, cfg: Simulator) -> None:
        self.cfg, self.spec, self.due = cfg, cfg.spec, 0.0
        never, obs = torch.zeros(cfg.envs, dtype=torch.bool), {OBS: torch.zeros(cfg.envs, 8)}
        self.first = Step(obs, obs, torch.zeros(cfg.envs), never, never, never)
        self.call_async = dataclasses.replace(self.first, valid=~never)

    def reset(self, seed: int) -> Step:
        """All rows begin."""
        return self.first

    def send(self, action: Tensor) -> None:
        """The simulator works from now on."""
        self.due = time.monotonic() + self.cfg.seconds

    def recv(self) -> Step:
        """Wait for what is left of its time."""
        time.sleep(max(0.0, self.due - time.monotonic()))
        return self.call_async

    def step(self, action: Tensor) -> Step:
        """Both."""
        self.send(action)
        return self.recv()

    def restart(self, rows: Tensor) -> Obs:
        """Rows that begin again look as they did."""
        return {name: value[rows] for name, value in self.first.obs.items()}

    def close(self) -> None:
        """Nothing to give back."""


class Still(Policy):
    """A policy that always does the same."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1000))
        self.actions: dict[int, PolicyOutput] = {}

    def initial_state(self, rows: int) -> State:
        """None."""
        return None

    def act(self, obs: Obs, state: State, explore: Tensor) -> PolicyOutput:
        """The first choice."""
        rows = explore.shape[0]
        if rows not in self.actions:
            self.actions[rows] = PolicyOutput(torch.zeros(rows, dtype=torch.int64))
        return self.actions[rows]


@dataclass(frozen=True)
class Accelerator:
    """An algorithm whose updates take `seconds` on another device."""

    seconds: float = 0.02

    @property
    def experience(self) -> NStep:
        """Single steps."""
        return NStep()

    @property
    def exploration(self) -> LinearSchedule:
        """None of it."""
        return LinearSchedule(0.0, 0.0, 1)

    def unsupported_reason(self, spec: EnvSpec) -> str | None:
        """Nothing is refused."""
        return None

    def policy(self, spec: EnvSpec) -> Still:
        """One that costs nothing."""
        return Still()

    def algorithm(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> Patient:
        """One that waits."""
        return Patient(self.seconds)


class Patient:
    """Waits for each update, and is as surprised by one row as by another."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.consecutive_skips = seconds, torch.zeros(())
        self.policy: nn.Module = Still()

    def update(self, batch: Transition) -> UpdateResult:
        """Wait."""
        time.sleep(self.seconds)
        return UpdateResult({}, torch.ones(len(batch)))

    def state_dict(self) -> dict[str, Any]:
        """Nothing to keep."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to take back."""
