"""A small Trainer, built as the sync system builds it."""

import torch

from troop.algorithms.fast_td3 import FastTD3Config
from troop.core.program import construct
from troop.roles.trainer import Rhythm
from troop.systems.setting import Evaluation, Setting
from troop.systems.sync import Sync

SMALL = {"actor_hidden": (8,), "critic_hidden": (8,), "atoms": 11, "v_min": -10.0, "v_max": 10.0}


def trainer(env, updates=2, overlap=False, warmup=5, renewal=0, batch=16, **changes):
    torch.manual_seed(0)
    system = Sync(Rhythm(batch, updates, overlap), capacity=200 * env.envs, warmup=warmup, renewal=renewal)
    cfg = FastTD3Config(**(SMALL | changes))
    program = system.program(cfg, env, Setting(1, "cpu", Evaluation(episodes=2)))
    return construct(program.nodes["trainer"].build, {}.__getitem__)
