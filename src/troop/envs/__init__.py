from troop.envs.envpool.adapter import EnvPool
from troop.envs.envpool.atari import preprocessing
from troop.envs.envpool.playground import tuned_reward
from troop.envs.guard import EnvGuard
from troop.envs.gymnasium.adapter import Gymnasium
from troop.envs.registry import family, list_envs, resolve
from troop.envs.toy.config import Toy
from troop.envs.video.recorder import EpisodeVideo, record_video, write_video

__all__ = [
    "EnvGuard",
    "EnvPool",
    "EpisodeVideo",
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
