"""System: declares which roles a training system has and which role holds a reference to which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from troop.core.algorithm import AlgorithmConfig
from troop.core.config import bounded
from troop.core.env import EnvConfig, EnvSpec
from troop.core.program import Program

B_co = TypeVar("B_co", covariant=True)  # the batch type that the system provides: Transition or Trajectory
UNLIMITED_STEPS = 10_000  # steps of an evaluated episode in an env without a time limit


@dataclass(frozen=True)
class Evaluation:
    """When and how the policy is evaluated, in separate envs."""

    episodes: int = bounded(16, low=1)
    """Episodes per evaluation: the first episode of each of this many envs."""
    seconds: float = bounded(15.0, above=0)
    """Training seconds between evaluations; ignored if env_steps is set."""
    env_steps: int | None = bounded(None, low=1)
    """Env steps between evaluations."""
    max_episode_steps: int | None = bounded(None, low=1)
    """Steps after which an unfinished episode is scored as it is; by default the time limit of the env, or
    10,000 if it has none."""
    explore: float = bounded(0.0, low=0, high=1e6)
    """Exploration value of the policy, such as the epsilon of the DQN papers; 0: no exploration."""

    def step_limit(self, spec: EnvSpec) -> int:
        """Return the number of steps after which an episode in this env is scored as it is."""
        if self.max_episode_steps is not None:
            return self.max_episode_steps
        # One more than the limit, so that the step that truncates the episode is always played.
        return UNLIMITED_STEPS if spec.episode_limit is None else spec.episode_limit + 1


@dataclass(frozen=True)
class RunSettings:
    """What a system needs to know of a run besides its algorithm and env."""

    seed: int
    device: str  # of the learner
    evaluation: Evaluation
    deterministic: bool = False  # no overlap of acting, simulating and learning; no decision by the clock
    minutes: float | None = None  # of training; None: unknown


class System(Protocol[B_co]):
    """A frozen dataclass of settings that wires an algorithm over batches of type `B_co` to envs."""

    def program(self, algorithm: AlgorithmConfig[B_co], env: EnvConfig, settings: RunSettings) -> Program:
        """Return the roles, not built yet; raise BadInput if the settings do not fit together."""
        ...
