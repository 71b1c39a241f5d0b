"""What every system is told besides its algorithm and env."""

from __future__ import annotations

from dataclasses import dataclass

from troop.core.config import ranged


@dataclass(frozen=True)
class Evaluation:
    """When and how policies are evaluated: without exploration, in envs of their own."""

    episodes: int = ranged(16, low=1)
    """One per env: the first episode of each."""
    seconds: float = ranged(15.0, above=0)
    """Training seconds between evaluations, if env_steps is not given."""
    env_steps: int | None = ranged(None, low=1)
    """Env steps between evaluations."""
    longest: int = ranged(10_000, low=1)
    """Steps after which an episode without an end is taken as it stands."""


@dataclass(frozen=True)
class Setting:
    """Seed, device and evaluation of one run."""

    seed: int
    device: str
    evaluation: Evaluation
    deterministic: bool = False
