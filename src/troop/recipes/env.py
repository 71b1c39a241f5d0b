"""Envs of recipes: resolved from the arguments, with the settings of their suite and their share of cores."""

from __future__ import annotations

import dataclasses

from troop import envs
from troop.core.env import EnvConfig
from troop.engines.runtime import cores
from troop.recipes.recipe import RecipeArgs


def resolve_env(args: RecipeArgs, default_env: str, default_envs: int) -> tuple[EnvConfig, str]:
    """Return the env and its family; G1 and T1 train on FastTD3's tuned reward without pushes, as there."""
    env_id = args.env or default_env
    env, family = envs.resolve(env_id, args.envs or default_envs), envs.family(env_id)
    if isinstance(env, envs.EnvPool) and envs.tuned_reward(env.id):
        env = dataclasses.replace(env, reward="tuned", settings=(("push_enable", False),))
    return env, family


def resolve_atari(args: RecipeArgs, default_envs: int, clip_rewards: bool = True) -> EnvConfig:
    """Return an Atari game as it is trained on: a lost life ends the episode.

    Rewards are clipped by the env unless the algorithm does that (`--reward-clip` of IMPALA).
    """
    env = envs.resolve(args.env or "Pong-v5", args.envs or default_envs)
    if isinstance(env, envs.EnvPool):
        settings = envs.preprocessing(clip_rewards=clip_rewards, terminal_on_life_loss=True)
        env = dataclasses.replace(env, settings=settings)
    return env


def with_threads(env: EnvConfig, threads: int) -> EnvConfig:
    """Return the env stepped by `threads` threads, at least one; other backends than EnvPool have none."""
    return dataclasses.replace(env, threads=max(1, threads)) if isinstance(env, envs.EnvPool) else env


def learner_threads() -> int:
    """Return half of the cores, at least one: the simulator steps on the others at the same time."""
    return max(1, cores() // 2)


def alternating_threads() -> int:
    """Return half of the cores, at least two: small networks are not faster on more.

    For learners that wait while the simulator steps.
    """
    return min(cores(), max(2, cores() // 2))
