"""Rows are returned once and in order, with the priority that a learner with the same weights computes."""

import copy

import numpy as np
import pytest
import torch

from troop.algorithms.dqn import DQNConfig
from troop.algorithms.td3 import TD3Config
from troop.core.exploration import PerEnv
from troop.envs import Toy
from troop.replay.prioritized import PrioritizedReplay, PriorityConfig
from troop.replay.recorders.chunks import ChunkRecorder
from troop.replay.uniform import ReplaySize
from troop.roles.collector import Collector, EnvFactory

ENVS = {
    "terminations, same step": Toy("Countdown", 3, limit=7, discrete=True),
    "terminations, next step": Toy("Countdown", 3, limit=7, discrete=True, autoreset="next_step"),
    "truncations, same step": Toy("PointMass", 3, limit=5, discrete=True),
    "truncations, next step": Toy("PointMass", 3, limit=5, discrete=True, autoreset="next_step"),
    "faults": Toy("Faulty", 3, limit=6, discrete=True, faults=((3, 0, "nan_obs"), (8, 1, "nan_reward"))),
}


def make_parts(env, n, length, recreate_every=0, with_priority=True, bootstrap=True, first_stream=0):
    torch.manual_seed(2)
    cfg = DQNConfig(n_step=n, gamma=0.9, hidden=(8,), optimizer="adam", bootstrap_on_truncation=bootstrap)
    policy = cfg.policy(env.spec)
    recorder = ChunkRecorder(
        env.envs, first_stream, length, cfg.experience, policy if with_priority else None
    )
    explore = PerEnv((0.5,) * env.envs)
    collector = Collector(EnvFactory(env.make, 5, recreate_every), policy, recorder, explore)
    return cfg, policy, recorder, collector


def play(collector, steps):
    rollouts, env_steps = [], 0
    for _ in range(steps):
        collector.send()
        completed, metrics = collector.recv()
        rollouts += completed
        env_steps += metrics["count/env_steps"]
    return rollouts, env_steps


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("length, recreate_every", [(1, 0), (4, 0), (9, 13)])
@pytest.mark.parametrize("bootstrap", [True, False])
def test_priorities_equal_those_of_the_learner(env, n, length, recreate_every, bootstrap):
    env = ENVS[env]
    cfg, policy, _, collector = make_parts(env, n, length, recreate_every, bootstrap=bootstrap)
    replay = PrioritizedReplay(
        env.spec, cfg.experience, ReplaySize(200, 1), 0, priority=PriorityConfig(alpha=1.0, eps=1e-12)
    )
    for rollout in play(collector, 60)[0]:
        replay.add(rollout)
    learner = cfg.algorithm(env.spec)
    learner.policy.load_state_dict(policy.state_dict())
    learner.target_q.load_state_dict(policy.q.state_dict())
    leaves = torch.from_numpy(replay.tree.get(np.arange(replay.capacity)))
    slots = leaves.nonzero().squeeze(1)
    assert len(slots) > 100
    batch = replay.sampler.transitions(slots)
    target = learner.target(batch, batch.next_obs["obs"], None)
    with torch.no_grad():
        said = learner.q(batch.obs["obs"]).gather(1, batch.action[:, None]).squeeze(1)
    assert (leaves[slots] - (target - said).abs().double()).abs().max() < 1e-5


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("with_priority", [True, False])
@pytest.mark.parametrize("length, recreate_every", [(1, 0), (4, 0), (9, 13)])
def test_every_row_is_returned_once_and_in_order(env, with_priority, length, recreate_every):
    env, n = ENVS[env], 3
    _, _, _, collector = make_parts(env, n, length, recreate_every, with_priority, first_stream=7)
    rollouts, env_steps = play(collector, 60)
    _, _, _, reference = make_parts(env, n, 1, recreate_every, with_priority=False, first_stream=7)
    expected, _ = play(reference, 60)

    def by_stream(rollouts):
        rows = {s: [] for s in range(7, 10)}
        for x in rollouts:
            for column, stream in enumerate(x.streams.tolist()):
                for time in range(len(x.reward)):
                    fields = (x.obs["obs"], x.action, x.reward, x.terminated, x.truncated, x.closing)
                    rows[stream].append([field[time, column].flatten().tolist() for field in fields])
        return rows

    expected_rows = by_stream(expected)
    for stream, rows in by_stream(rollouts).items():
        assert repr(rows) == repr(expected_rows[stream][: len(rows)])  # NaN is not equal to itself
        assert len(expected_rows[stream]) - len(rows) < 2 * (length + (n if with_priority else 0))
    if not with_priority and length == 1:
        assert sum(int((~rollout.closing).sum()) for rollout in rollouts) == env_steps


def test_chunk_is_one_rollout_with_next_step_autoreset():
    env = ENVS["truncations, next step"]
    _, _, _, collector = make_parts(env, 3, 8)
    rollouts, _ = play(collector, 8 * 4 + 3)
    assert [rollout.reward.shape for rollout in rollouts] == [(8, 3)] * 4
    assert all(rollout.extras["priority"].shape == (8, 3) for rollout in rollouts)


def test_without_priorities_no_row_is_delayed():
    env = ENVS["terminations, next step"]
    _, _, _, collector = make_parts(env, 3, 8, with_priority=False)
    rollouts, _ = play(collector, 16)
    assert len(rollouts) == 2 and all(rollout.extras == {} for rollout in rollouts)


@pytest.mark.parametrize("env", ENVS)
def test_pending_steps_are_restored(env):
    _, _, recorder, collector = make_parts(ENVS[env], 3, 8)
    play(collector, 13)
    _, _, other, _ = make_parts(ENVS[env], 3, 8)
    other.load_state_dict(copy.deepcopy(recorder.state_dict()))
    obs = collector.last_step.obs
    for one, two in zip(recorder.flush(obs), other.flush(obs), strict=True):
        assert torch.equal(one.reward, two.reward) and torch.equal(one.streams, two.streams)
        assert one.extras.keys() == two.extras.keys()
        assert all(torch.equal(x, two.extras[name]) for name, x in one.extras.items())


def test_priorities_are_finite_if_the_network_returns_nan():
    env = ENVS["terminations, next step"]
    _, policy, _, collector = make_parts(env, 3, 4)
    with torch.no_grad():
        next(policy.parameters()).fill_(float("nan"))
    rollouts, _ = play(collector, 12)
    assert all(torch.isfinite(rollout.extras["priority"]).all() for rollout in rollouts)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("style", ["same_step", "next_step"])
@pytest.mark.parametrize("privileged", [False, True])
def test_priorities_of_an_actor_with_its_critic_equal_those_of_the_learner(n, style, privileged):
    env = Toy("PointMass", 3, limit=5, autoreset=style, privileged=privileged)
    torch.manual_seed(2)
    cfg = TD3Config(
        gamma=0.9,
        n_step=n,
        atoms=0,
        critics=1,
        policy_noise=0.0,
        actor_carries_critic=True,
        actor_hidden=(8,),
        critic_hidden=(8,),
    )
    policy = cfg.policy(env.spec)
    policy.normalizer.update(torch.randn(64, 3 if privileged else 2))
    recorder = ChunkRecorder(3, 0, 4, cfg.experience, policy)
    collector = Collector(EnvFactory(env.make, 5, 13), policy, recorder, PerEnv((0.0, 0.3, 0.6)))
    replay = PrioritizedReplay(
        env.spec, cfg.experience, ReplaySize(200, 1), 0, priority=PriorityConfig(alpha=1.0, eps=1e-12)
    )
    for rollout in play(collector, 60)[0]:
        replay.add(rollout)
    learner = cfg.algorithm(env.spec)
    learner.policy.load_state_dict(policy.state_dict())
    learner.target_critic.load_state_dict(policy.critic.state_dict())
    learner.actor_learner.updates = 10_001  # the normalizer stays as it is
    leaves = torch.from_numpy(replay.tree.get(np.arange(replay.capacity)))
    slots = leaves.nonzero().squeeze(1)
    batch = replay.sampler.transitions(slots, torch.ones(len(slots)), slots)
    assert (leaves[slots] - learner.update(batch).priority.double()).abs().max() < 1e-5 and len(slots) > 100
