"""A small Trainer, built as the sync system builds it."""

import torch

from troop.algorithms.td3 import TD3Config
from troop.core.program import construct
from troop.roles.trainer import UpdateSchedule
from troop.systems.settings import Evaluation, RunSettings
from troop.systems.sync import Sync

SMALL = {"actor_hidden": (8,), "critic_hidden": (8,), "atoms": 11, "v_min": -10.0, "v_max": 10.0}


def trainer(env, updates=2, overlap=False, warmup=5, recreate_every=0, batch=16, **changes):
    torch.manual_seed(0)
    system = Sync(
        UpdateSchedule(batch, updates, overlap),
        replay_capacity=200 * env.envs,
        learning_starts=warmup,
        recreate_every=recreate_every,
    )
    cfg = TD3Config(**(SMALL | changes))
    program = system.program(cfg, env, RunSettings(1, "cpu", Evaluation(episodes=2)))
    return construct(program.nodes["trainer"].build, {}.__getitem__)
