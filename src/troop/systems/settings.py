"""What every system is told besides its algorithm and env."""

from __future__ import annotations

from dataclasses import dataclass

from troop.core.config import bounded


@dataclass(frozen=True)
class Evaluation:
    """When and how policies are evaluated: without exploration, in envs of their own."""

    episodes: int = bounded(16, low=1)
    """One per env: the first episode of each."""
    seconds: float = bounded(15.0, above=0)
    """Training seconds between evaluations, if env_steps is not given."""
    env_steps: int | None = bounded(None, low=1)
    """Env steps between evaluations."""
    longest: int = bounded(10_000, low=1)
    """Steps after which an episode without an end is taken as it stands."""


@dataclass(frozen=True)
class RunSettings:
    """Seed, device and evaluation of one run."""

    seed: int
    device: str
    evaluation: Evaluation
    deterministic: bool = False
