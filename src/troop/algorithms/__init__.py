"""Algorithms: what is learned from a batch. One file each, independent of one another."""

from troop.algorithms.actor_critic_policy import ActorCriticPolicy
from troop.algorithms.appo import APPO, APPOConfig
from troop.algorithms.c51 import C51, C51Config, C51Policy
from troop.algorithms.dqn import DQN, DQNConfig, DQNPolicy
from troop.algorithms.flash_sac import FlashSAC, FlashSACConfig, FlashSACPolicy
from troop.algorithms.impala import Impala, ImpalaConfig
from troop.algorithms.ppo import PPO, PPOConfig
from troop.algorithms.rainbow import Rainbow, RainbowConfig, RainbowPolicy
from troop.algorithms.sac import SAC, SACConfig, SACPolicy
from troop.algorithms.td3 import TD3, TD3Config, TD3Policy

__all__ = [
    "APPO",
    "C51",
    "DQN",
    "PPO",
    "SAC",
    "TD3",
    "APPOConfig",
    "ActorCriticPolicy",
    "C51Config",
    "C51Policy",
    "DQNConfig",
    "DQNPolicy",
    "FlashSAC",
    "FlashSACConfig",
    "FlashSACPolicy",
    "Impala",
    "ImpalaConfig",
    "PPOConfig",
    "Rainbow",
    "RainbowConfig",
    "RainbowPolicy",
    "SACConfig",
    "SACPolicy",
    "TD3Config",
    "TD3Policy",
]
