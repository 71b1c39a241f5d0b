"""A small Trainer, built as the Sync system builds it."""

import torch

from troop.algorithms.td3 import TD3Config
from troop.core.program import construct
from troop.core.system import Evaluation, RunSettings
from troop.roles.update_schedule import UpdateSchedule
from troop.systems.sync import Sync

SMALL = {"actor_hidden": (8,), "critic_hidden": (8,), "atoms": 11, "v_min": -10.0, "v_max": 10.0}


def make_trainer(
    env, updates=2, overlap=False, warmup=5, recreate_every=0, batch_size=16, save_replay=True, **algorithm
):
    torch.manual_seed(0)
    system = Sync(
        UpdateSchedule(batch_size, updates, overlap),
        replay_capacity=200 * env.envs,
        learning_starts=warmup,
        save_replay=save_replay,
        recreate_every=recreate_every,
    )
    config = TD3Config(**(SMALL | algorithm))
    program = system.program(config, env, RunSettings(1, "cpu", Evaluation(episodes=2)))
    return construct(program.nodes["trainer"].build, {}.__getitem__)
