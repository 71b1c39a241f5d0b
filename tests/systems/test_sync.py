import dataclasses

import pytest

from troop.algorithms.td3 import TD3Config
from troop.core.batch import TrajectorySpec
from troop.core.errors import BadInput
from troop.core.program import construct
from troop.envs import Toy
from troop.roles.trainer import UpdateSchedule
from troop.systems.settings import Evaluation, RunSettings
from troop.systems.sync import Sync

SETTING = RunSettings(1, "cpu", Evaluation(episodes=3, env_steps=40))
SMALL = TD3Config(actor_hidden=(8,), critic_hidden=(8,), atoms=11, std_min=0.2, std_max=0.3)


def built(system, setting=SETTING, env=None):
    program = system.program(SMALL, env or Toy("Clock", 4), setting)
    roles = {}
    for name, node in program.nodes.items():
        roles[name] = construct(node.build, roles.__getitem__)
    return program, roles


def test_the_trainer_gets_what_the_configs_say():
    _, roles = built(Sync(UpdateSchedule(32, 3), replay_capacity=400, learning_starts=7, recreate_every=9))
    trainer = roles["trainer"]
    assert trainer.schedule == UpdateSchedule(32, 3)
    assert (
        trainer.store.capacity == 400 and trainer.store.size.length == 100 and trainer.store.size.warmup == 7
    )
    assert trainer.collector.world.recreate_every == 9 and trainer.collector.envs == 4
    assert trainer.collector.explore.min() >= 0.2 and trainer.collector.explore.max() <= 0.3


def test_the_evaluator_has_envs_of_its_own_on_a_schedule():
    program, roles = built(Sync(replay_capacity=400), env=Toy("Clock", 4, limit=6))
    assert roles["evaluator"].step()["eval/episodes"] == 3
    assert roles["evaluator"].longest == 7 and roles["evaluator"].weights is roles["trainer"]
    assert program.nodes["evaluator"].schedule.env_steps == 40
    assert program.nodes["trainer"].schedule is None


def test_the_deterministic_mode_does_not_overlap():
    system = Sync(UpdateSchedule(32, 2, overlap=True), replay_capacity=400)
    assert built(system)[1]["trainer"].schedule.overlap
    assert not built(system, dataclasses.replace(SETTING, deterministic=True))[1]["trainer"].schedule.overlap


def test_a_capacity_too_small_for_its_envs_is_refused_with_the_least_that_works():
    with pytest.raises(
        BadInput, match=r"--system.replay-capacity is 47; with 4 envs it must be at least 48\."
    ):
        built(Sync(replay_capacity=47, learning_starts=10))
    _, roles = built(Sync(UpdateSchedule(8, 1), replay_capacity=48, learning_starts=10))
    for _ in range(30):
        roles["trainer"].step()
    assert roles["trainer"].version == 21  # and it does work


def test_algorithms_that_want_trajectories_are_refused():
    class Wants(TD3Config):
        experience = TrajectorySpec(8)

    with pytest.raises(BadInput, match="Wants wants trajectories"):
        Sync(replay_capacity=400).program(Wants(), Toy("Clock", 4), SETTING)
