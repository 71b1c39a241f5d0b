import dataclasses
import json
import sys

import pytest
import torch
from small_systems import TrajectoryConfig

from troop.algorithms import TD3Config
from troop.compile_cache import fill
from troop.core.batch import Transition
from troop.core.errors import BadInput
from troop.core.program import construct
from troop.core.system import Evaluation, RunSettings
from troop.envs import Toy
from troop.roles.cache_filler import describe_batch
from troop.roles.update_schedule import UpdateSchedule
from troop.systems import Sync
from troop.systems.components import auto_compile

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


def test_auto_compile_knows_the_budget_and_is_off_if_the_run_is_deterministic():
    automatic = dataclasses.replace(TD3, compile="auto")
    for settings, expected in (
        (dataclasses.replace(SETTINGS, minutes=7.0), 7.0),
        (dataclasses.replace(SETTINGS, minutes=7.0, deterministic=True), None),
    ):
        program = Sync(replay_capacity=400).program(automatic, Toy("Clock", 4), settings)
        trainer = construct(program.nodes["trainer"].build, {}.__getitem__)
        config = trainer.compiler.config
        assert (config and config.minutes) == expected
        assert trainer.compiler.phase == ("measure" if config else "done")
    plain = build(Sync(replay_capacity=400))[1]["trainer"]
    assert plain.compiler.config is None and "policy/compiled" not in plain.gauges()


@pytest.mark.parametrize("method", ["algorithm", "critic_learner", "actor_learner"])
def test_another_process_builds_the_same_learner_from_json(method, monkeypatch):
    compiled = []
    optim = sys.modules["troop.algorithms.optim.value_and_grad"]
    monkeypatch.setattr(optim, "_compiled", lambda function, device: compiled.append(function) or function)
    automatic = dataclasses.replace(TD3, compile="auto")
    env = Toy("PointMass", 4)
    config = auto_compile(automatic, env, SETTINGS, "cpu", method)
    obs, action = {"obs": torch.randn(8, env.spec.width())}, torch.randn(8, env.spec.action.size)
    batch = Transition(obs, action, torch.randn(8), torch.full((8,), 0.9), obs)
    job = {"threads": torch.get_num_threads(), "batch": describe_batch(batch)}
    assert fill(json.loads(json.dumps(config.learner | job)))
    assert len(compiled) == (2 if method == "algorithm" else 1)


def test_decision_about_compilation_is_part_of_the_checkpoint():
    automatic = dataclasses.replace(TD3, compile="auto")
    program = Sync(replay_capacity=400).program(automatic, Toy("Clock", 4), SETTINGS)
    first, second = (construct(program.nodes["trainer"].build, {}.__getitem__) for _ in range(2))
    first.compiler._finish("a test")
    assert first.notes == ["--compile auto: off; a test"]
    second.load_state_dict(first.state_dict())
    assert second.compiler.phase == "done" and second.gauges()["policy/compiled"] == 0
