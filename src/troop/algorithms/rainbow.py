"""Rainbow: Hessel et al. 2018, "Combining Improvements in Deep Reinforcement Learning".

Settings only: all six improvements are fields of C51 and DQN, or of the replay. docs/algorithms/rainbow.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from troop.algorithms.c51 import C51Config
from troop.core.config import bounded


@dataclass(frozen=True)
class RainbowConfig(C51Config):
    """C51 with the other five: double, dueling, three steps and noise here, priorities in the replay."""

    n_step: int = bounded(3, low=1, high=64)
    double: bool = True
    dueling: bool = True
    noisy: float = bounded(0.5, low=0, high=10)
    epsilon_start: float = bounded(0.0, low=0, high=1)
    epsilon_end: float = bounded(0.0, low=0, high=1)
    target_period: int = bounded(2000, low=1)
    lr: float = bounded(6.25e-5, above=0)
    eps: float = bounded(1.5e-4, above=0)
    max_grad_norm: float = bounded(10.0, low=0)
