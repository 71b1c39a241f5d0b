"""AXIS 2: what is learned from a batch."""

from troop.algorithms.c51 import C51, C51Config, C51Policy
from troop.algorithms.dqn import DQN, DQNConfig, DQNPolicy
from troop.algorithms.rainbow import RainbowConfig
from troop.algorithms.sac import SAC, SACConfig, SACPolicy
from troop.algorithms.td3 import TD3, TD3Config, TD3Policy

__all__ = [
    "C51",
    "DQN",
    "SAC",
    "C51Config",
    "C51Policy",
    "DQNConfig",
    "DQNPolicy",
    "TD3",
    "TD3Config",
    "TD3Policy",
    "RainbowConfig",
    "SACConfig",
    "SACPolicy",
]
