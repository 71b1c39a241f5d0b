from troop.envs.atari import preprocessing
from troop.envs.envpool import EnvPool
from troop.envs.gymnasium import Gymnasium
from troop.envs.registry import family, list_envs, resolve
from troop.envs.rendering import Recording, record, write_video
from troop.envs.toy import Toy
from troop.envs.transforms import Guarded
from troop.envs.tuned_rewards import tuned_reward

__all__ = [
    "EnvPool",
    "Guarded",
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
