"""FlashSAC in every system: held noise and running statistics in checkpoints, actors and loaded policies."""

import copy
import dataclasses

import pytest
import torch
from small_systems import differing_paths, flatten_state

from troop import api
from troop.algorithms import FlashSACConfig
from troop.core.engine import Until
from troop.core.system import Evaluation, RunSettings
from troop.engines import Inline, Processes
from troop.engines.host import Host
from troop.envs import Toy
from troop.experiment import Experiment
from troop.roles.learner import LearnerConfig
from troop.roles.update_schedule import UpdateSchedule
from troop.systems import PQL, Apex, Sync

ALGORITHM = FlashSACConfig(actor_width=4, critic_width=4, atoms=11, n_step=3, random_steps=30)
ENV = Toy("PointMass", 4, limit=9)
SYSTEMS = {
    "sync": Sync(UpdateSchedule(16, 2), replay_capacity=400, learning_starts=6, recreate_every=14),
    "sync, overlap": Sync(
        UpdateSchedule(16, 2, overlap=True), replay_capacity=400, learning_starts=6, recreate_every=14
    ),
    "apex": Apex(
        actors=2,
        chunk_length=4,
        weight_sync_steps=10,
        learner=LearnerConfig(16, prefetch=1, publish_every=3),
        replay_capacity=900,
        learning_starts=40,
        samples_per_insert=4.0,
        recreate_every=14,
    ),
    "pql": PQL(2.0, 2.0, batch_size=16, replay_capacity=400, learning_starts=6, recreate_every=14),
}


def make_host(system):
    return Host(system.program(ALGORITHM, ENV, RunSettings(1, "cpu", Evaluation(episodes=2))), 1)


def losses(host, rounds):
    metrics = [step for _ in range(rounds) for step in host.step_all()]
    return [float(m[name]) for m in metrics for name in ("loss/critic", "loss/policy") if name in m]


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.reliability("R2")
def test_a_resumed_run_is_bit_equal_to_an_uninterrupted_one(name):
    whole = make_host(SYSTEMS[name])
    expected = losses(whole, 60)
    final = copy.deepcopy(whole.state_dict())
    whole.close()
    first = make_host(SYSTEMS[name])
    found = losses(first, 33)  # in the middle of episodes, with noise that is held
    state = copy.deepcopy(first.state_dict())
    first.close()
    torch.manual_seed(12345)
    second = make_host(SYSTEMS[name])
    second.load_state_dict(state)
    assert second.notes() == []
    assert found + losses(second, 27) == expected and len(expected) > 40
    assert differing_paths(final, second.state_dict()) == []
    paths = set(flatten_state(final))
    for part in ("collector/state", "actor.running_mean", "running_var", "log_alpha"):
        assert any(part in path for path in paths), part
    second.close()


def experiment(name, engine):
    evaluation = Evaluation(episodes=2, env_steps=10**9, max_episode_steps=9)
    until = Until(env_steps=700)
    return Experiment(ENV, ALGORITHM, SYSTEMS[name], engine, until, evaluation, seed=1)


@pytest.mark.parametrize("name", ["sync", "apex", "pql"])
def test_a_run_in_processes_trains_and_its_policy_is_loaded(name, tmp_path):
    engine = Inline(threads=1) if name == "sync" else Processes(threads=1)
    system = SYSTEMS[name]
    if name != "sync":  # two halves of envs in turn, which need separate states
        system = dataclasses.replace(system, recreate_every=0, overlap=True)
    run = dataclasses.replace(experiment(name, engine), system=system)
    result = run.run(tmp_path / "run", quiet=True)
    assert result.counters.updates > 20
    policy = api.load_policy(tmp_path / "run")
    running_var = policy.module.actor.running_var
    assert running_var.isfinite().all() and (running_var != 1).all()
    obs = torch.randn(5, 2)
    mean, _ = policy.module.gaussian(policy.module.actor(obs))
    assert torch.allclose(policy(obs, scaled=False), mean.tanh())
    assert policy.act({"obs": obs}).shape == (5, 1) and policy(obs[0].numpy()).shape == (1,)
    greedy, sampled = (
        api.evaluate(tmp_path / "run", episodes=8, explore=explore)["return_mean"] for explore in (0.0, 1.0)
    )
    assert greedy != sampled
    assert sampled == api.evaluate(tmp_path / "run", episodes=8, explore=1.0)["return_mean"]
