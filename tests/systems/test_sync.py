import dataclasses

import pytest
from small_systems import TrajectoryConfig

from troop.algorithms import TD3Config
from troop.core.errors import BadInput
from troop.core.program import construct
from troop.core.system import Evaluation, RunSettings
from troop.envs import Toy
from troop.roles.trainer import UpdateSchedule
from troop.systems import Sync

SETTINGS = RunSettings(1, "cpu", Evaluation(episodes=3, env_steps=40))
TD3 = TD3Config(actor_hidden=(8,), critic_hidden=(8,), atoms=11, std_min=0.2, std_max=0.3)


def build(system, settings=SETTINGS, env=None):
    program = system.program(TD3, env or Toy("Clock", 4), settings)
    roles = {}
    for name, node in program.nodes.items():
        roles[name] = construct(node.build, roles.__getitem__)
    return program, roles


def test_trainer_is_built_from_the_settings():
    system = Sync(UpdateSchedule(32, 3), replay_capacity=400, learning_starts=7, recreate_every=9)
    _, roles = build(system)
    trainer = roles["trainer"]
    assert trainer.schedule == UpdateSchedule(32, 3)
    size = trainer.replay.size
    assert (trainer.replay.capacity, size.length, size.warmup) == (400, 100, 7)
    assert trainer.collector.env_factory.recreate_every == 9 and trainer.collector.envs == 4
    assert trainer.collector.explore.min() >= 0.2 and trainer.collector.explore.max() <= 0.3


def test_evaluator_has_its_own_envs_and_a_schedule():
    program, roles = build(Sync(replay_capacity=400), env=Toy("Clock", 4, limit=6))
    assert roles["evaluator"].step()["eval/episodes"] == 3
    assert roles["evaluator"].max_steps == 7 and roles["evaluator"].weights is roles["trainer"]
    assert program.nodes["evaluator"].schedule.env_steps == 40
    assert program.nodes["trainer"].schedule is None


def test_deterministic_run_does_not_overlap():
    system = Sync(UpdateSchedule(32, 2, overlap=True), replay_capacity=400)
    deterministic = dataclasses.replace(SETTINGS, deterministic=True)
    assert build(system)[1]["trainer"].schedule.overlap
    assert not build(system, deterministic)[1]["trainer"].schedule.overlap


def test_error_message_has_the_smallest_capacity_that_works():
    message = r"--system.replay-capacity is 47; with 4 envs it must be at least 48\."
    with pytest.raises(BadInput, match=message):
        build(Sync(replay_capacity=47, learning_starts=10))
    _, roles = build(Sync(UpdateSchedule(8, 1), replay_capacity=48, learning_starts=10))
    for _ in range(30):
        roles["trainer"].step()
    assert roles["trainer"].version == 21


def test_algorithm_that_learns_from_trajectories_is_rejected():
    with pytest.raises(BadInput, match="TrajectoryConfig learns from trajectories, but the sync system"):
        Sync(replay_capacity=400).program(TrajectoryConfig(), Toy("Clock", 4), SETTINGS)


@pytest.mark.parametrize(
    "envs, limit, recreate_every, interval",
    [(4, 10, 5000, 5000), (4, 10, 0, 0), (2**20, 10, 5000, 64), (2**20, 100, 5000, 102)],
)
def test_recorded_actions_are_bounded_but_cover_an_episode(envs, limit, recreate_every, interval):
    spec = Toy("Clock", envs, limit=limit).spec
    assert Sync(recreate_every=recreate_every).recreate_interval(spec) == interval
