import dataclasses

import pytest

from troop.algorithms.fast_td3 import FastTD3Config
from troop.core.batch import Sequence
from troop.core.errors import BadInput
from troop.core.program import construct
from troop.envs import Toy
from troop.roles.trainer import Rhythm
from troop.systems.setting import Evaluation, Setting
from troop.systems.sync import Sync

SETTING = Setting(1, "cpu", Evaluation(episodes=3, env_steps=40))
SMALL = FastTD3Config(actor_hidden=(8,), critic_hidden=(8,), atoms=11, std_min=0.2, std_max=0.3)


def built(system, setting=SETTING, env=None):
    program = system.program(SMALL, env or Toy("Clock", 4), setting)
    roles = {}
    for name, node in program.nodes.items():
        roles[name] = construct(node.build, roles.__getitem__)
    return program, roles


def test_the_trainer_gets_what_the_configs_say():
    _, roles = built(Sync(Rhythm(32, 3), capacity=400, warmup=7, renewal=9))
    trainer = roles["trainer"]
    assert trainer.rhythm == Rhythm(32, 3)
    assert (
        trainer.store.capacity == 400 and trainer.store.size.length == 100 and trainer.store.size.warmup == 7
    )
    assert trainer.collector.world.renewal == 9 and trainer.collector.envs == 4
    assert trainer.collector.explore.min() >= 0.2 and trainer.collector.explore.max() <= 0.3


def test_the_evaluator_has_envs_of_its_own_on_a_schedule():
    program, roles = built(Sync(capacity=400), env=Toy("Clock", 4, limit=6))
    assert roles["evaluator"].step()["eval/episodes"] == 3
    assert roles["evaluator"].longest == 7 and roles["evaluator"].weights is roles["trainer"]
    assert program.nodes["evaluator"].schedule.env_steps == 40
    assert program.nodes["trainer"].schedule is None


def test_the_deterministic_mode_does_not_overlap():
    system = Sync(Rhythm(32, 2, overlap=True), capacity=400)
    assert built(system)[1]["trainer"].rhythm.overlap
    assert not built(system, dataclasses.replace(SETTING, deterministic=True))[1]["trainer"].rhythm.overlap


def test_a_capacity_too_small_for_its_envs_is_refused_with_the_least_that_works():
    with pytest.raises(BadInput, match=r"--system.capacity is 47; with 4 envs it must be at least 48\."):
        built(Sync(capacity=47, warmup=10))
    _, roles = built(Sync(Rhythm(8, 1), capacity=48, warmup=10))
    for _ in range(30):
        roles["trainer"].step()
    assert roles["trainer"].version == 21  # and it does work


def test_algorithms_that_want_trajectories_are_refused():
    class Wants(FastTD3Config):
        experience = Sequence(8)

    with pytest.raises(BadInput, match="Wants wants trajectories"):
        Sync(capacity=400).program(Wants(), Toy("Clock", 4), SETTING)
