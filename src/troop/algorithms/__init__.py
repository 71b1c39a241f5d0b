"""Algorithms: what is learned from a batch. One file each, independent of one another."""

from troop.algorithms.c51 import C51, C51Config, C51Policy
from troop.algorithms.dqn import DQN, DQNConfig, DQNPolicy
from troop.algorithms.rainbow import Rainbow, RainbowConfig, RainbowPolicy
from troop.algorithms.sac import SAC, SACConfig, SACPolicy
from troop.algorithms.td3 import TD3, TD3Config, TD3Policy

__all__ = [
    "C51",
    "DQN",
    "SAC",
    "TD3",
    "C51Config",
    "C51Policy",
    "DQNConfig",
    "DQNPolicy",
    "Rainbow",
    "RainbowConfig",
    "RainbowPolicy",
    "SACConfig",
    "SACPolicy",
    "TD3Config",
    "TD3Policy",
]
