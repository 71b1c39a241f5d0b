"""Rainbow: Hessel et al. 2018, "Combining Improvements in Deep Reinforcement Learning".

Settings only: all six improvements are fields of C51 and DQN, or of the replay. docs/algorithms/rainbow.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from troop.algorithms.c51 import C51Config
from troop.core.config import ranged


@dataclass(frozen=True)
class RainbowConfig(C51Config):
    """C51 with the other five: double, dueling, three steps and noise here, priorities in the replay."""

    n_step: int = ranged(3, low=1, high=64)
    double: bool = True
    dueling: bool = True
    noisy: float = ranged(0.5, low=0, high=10)
    epsilon_start: float = ranged(0.0, low=0, high=1)
    epsilon_end: float = ranged(0.0, low=0, high=1)
    target_period: int = ranged(2000, low=1)
    lr: float = ranged(6.25e-5, above=0)
    eps: float = ranged(1.5e-4, above=0)
    max_grad_norm: float = ranged(10.0, low=0)
