"""Algorithms: what is learned from a batch. One file each, independent of one another."""

from troop.algorithms.actor_critic_policy import ActorCriticPolicy
from troop.algorithms.appo import APPO, APPOConfig
from troop.algorithms.c51 import C51, C51Config, C51Policy
from troop.algorithms.dqn import DQN, DQNConfig, DQNPolicy
from troop.algorithms.flash_sac import FlashSAC, FlashSACConfig, FlashSACPolicy
from troop.algorithms.impala import Impala, ImpalaConfig
from troop.algorithms.ppo import PPO, PPOConfig
from troop.algorithms.r2d2 import R2D2, R2D2Config, R2D2Policy
from troop.algorithms.rainbow import Rainbow, RainbowConfig, RainbowPolicy
from troop.algorithms.sac import SAC, SACConfig, SACPolicy
from troop.algorithms.sac_gru import SACGRU, SACGRUConfig, SACGRUPolicy
from troop.algorithms.td3 import TD3, TD3Config, TD3Policy
from troop.algorithms.td3_gru import TD3GRU, TD3GRUConfig, TD3GRUPolicy
from troop.algorithms.unreal import Unreal, UnrealConfig

__all__ = [
    "APPO",
    "C51",
    "DQN",
    "PPO",
    "R2D2",
    "SAC",
    "SACGRU",
    "TD3",
    "TD3GRU",
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
    "R2D2Config",
    "R2D2Policy",
    "Rainbow",
    "RainbowConfig",
    "RainbowPolicy",
    "SACConfig",
    "SACGRUConfig",
    "SACGRUPolicy",
    "SACPolicy",
    "TD3Config",
    "TD3GRUConfig",
    "TD3GRUPolicy",
    "TD3Policy",
    "Unreal",
    "UnrealConfig",
]
