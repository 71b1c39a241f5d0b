from troop.envs.envpool.adapter import EnvPool
from troop.envs.envpool.atari import preprocessing
from troop.envs.envpool.tuned_rewards import tuned_reward
from troop.envs.guard import EnvGuard
from troop.envs.gymnasium.adapter import Gymnasium
from troop.envs.registry import family, list_envs, resolve
from troop.envs.toy.config import Toy
from troop.envs.video.recorder import Recording, record, write_video

__all__ = [
    "EnvGuard",
    "EnvPool",
    "Gymnasium",
    "Recording",
    "Toy",
    "family",
    "list_envs",
    "preprocessing",
    "record",
    "resolve",
    "tuned_reward",
    "write_video",
]
