"""Env backends, imported on first use: the processes of `envs/gymnasium/workers.py` need no torch."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from troop.envs.envpool.adapter import EnvPool
    from troop.envs.envpool.atari import preprocessing
    from troop.envs.envpool.playground import tuned_reward
    from troop.envs.frames import FrameConfig
    from troop.envs.guard import EnvGuard
    from troop.envs.gymnasium.adapter import Gymnasium
    from troop.envs.registry import family, list_envs, resolve
    from troop.envs.toy.config import Toy
    from troop.envs.video.recorder import EpisodeVideo, record_video, write_video

_MODULES = {
    "EnvGuard": "guard",
    "EnvPool": "envpool.adapter",
    "EpisodeVideo": "video.recorder",
    "FrameConfig": "frames",
    "Gymnasium": "gymnasium.adapter",
    "Toy": "toy.config",
    "family": "registry",
    "list_envs": "registry",
    "preprocessing": "envpool.atari",
    "record_video": "video.recorder",
    "resolve": "registry",
    "tuned_reward": "envpool.playground",
    "write_video": "video.recorder",
}

__all__ = [
    "EnvGuard",
    "EnvPool",
    "EpisodeVideo",
    "FrameConfig",
    "Gymnasium",
    "Toy",
    "family",
    "list_envs",
    "preprocessing",
    "record_video",
    "resolve",
    "tuned_reward",
    "write_video",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(importlib.import_module(f"troop.envs.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'troop.envs' has no attribute {name!r}")
