"""AXIS 2: what is learned from a batch."""

from troop.algorithms.c51 import C51, C51Config, C51Policy
from troop.algorithms.dqn import DQN, DQNConfig, DQNPolicy
from troop.algorithms.fast_td3 import FastTD3, FastTD3Config, FastTD3Policy
from troop.algorithms.rainbow import RainbowConfig
from troop.algorithms.sac import SAC, SACConfig, SACPolicy

__all__ = [
    "C51",
    "DQN",
    "SAC",
    "C51Config",
    "C51Policy",
    "DQNConfig",
    "DQNPolicy",
    "FastTD3",
    "FastTD3Config",
    "FastTD3Policy",
    "RainbowConfig",
    "SACConfig",
    "SACPolicy",
]
