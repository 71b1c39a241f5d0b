"""Rows leave once and in order, with the priority that a learner with the same weights would give them."""

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
    "ends, reset in the same step": Toy("Countdown", 3, limit=7, discrete=True),
    "ends, reset in the next step": Toy("Countdown", 3, limit=7, discrete=True, autoreset="next_step"),
    "limits, reset in the same step": Toy("PointMass", 3, limit=5, discrete=True),
    "limits, reset in the next step": Toy("PointMass", 3, limit=5, discrete=True, autoreset="next_step"),
    "faults": Toy("Faulty", 3, limit=6, discrete=True, faults=((3, 0, "nan_obs"), (8, 1, "nan_reward"))),
}


def parts(env, n, length, recreate_every=0, judged=True, limits=True, first=0):
    torch.manual_seed(2)
    cfg = DQNConfig(n_step=n, gamma=0.9, hidden=(8,), optimizer="adam", bootstrap_on_truncation=limits)
    policy = cfg.policy(env.spec)
    recorder = ChunkRecorder(env.envs, first, length, cfg.experience, policy if judged else None)
    explore = PerEnv((0.5,) * env.envs)
    return (
        cfg,
        policy,
        recorder,
        Collector(EnvFactory(env.make, 5, recreate_every), policy, recorder, explore),
    )


def play(collector, steps):
    pieces, counted = [], 0
    for _ in range(steps):
        collector.begin()
        came, metrics = collector.finish()
        pieces += came
        counted += metrics["count/env_steps"]
    return pieces, counted


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("length, renewal", [(1, 0), (4, 0), (9, 13)])
@pytest.mark.parametrize("limits", [True, False])
def test_priorities_are_those_the_learner_would_compute(env, n, length, recreate_every, limits):
    env = ENVS[env]
    cfg, policy, _, collector = parts(env, n, length, recreate_every, limits=limits)
    replay = PrioritizedReplay(
        env.spec, cfg.experience, ReplaySize(200, 1), 0, priority=PriorityConfig(alpha=1.0, eps=1e-12)
    )
    pieces, _ = play(collector, 60)
    for piece in pieces:
        replay.add(piece)
    learner = cfg.algorithm(env.spec)
    learner.policy.load_state_dict(policy.state_dict())
    learner.target_q.load_state_dict(policy.q.state_dict())
    leaves = torch.from_numpy(replay.tree.get(np.arange(replay.capacity)))
    place = leaves.nonzero().squeeze(1)
    assert len(place) > 100
    batch = replay.windows.transitions(place)
    target = learner.target(batch, batch.next_obs["obs"], None)
    with torch.no_grad():
        said = learner.q(batch.obs["obs"]).gather(1, batch.action[:, None]).squeeze(1)
    assert (leaves[place] - (target - said).abs().double()).abs().max() < 1e-5


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("judged", [True, False])
@pytest.mark.parametrize("length, renewal", [(1, 0), (4, 0), (9, 13)])
def test_every_row_leaves_once_and_in_order(env, judged, length, recreate_every):
    env, n = ENVS[env], 3
    _, _, _, collector = parts(env, n, length, recreate_every, judged, first=7)
    pieces, counted = play(collector, 60)
    _, _, _, plain = parts(env, n, 1, recreate_every, judged=False, first=7)
    wanted, _ = play(plain, 60)

    def streams(pieces):
        found = {s: [] for s in range(7, 10)}
        for piece in pieces:
            for column, stream in enumerate(piece.streams.tolist()):
                for row in range(len(piece.reward)):
                    fields = (piece.obs["obs"], piece.action, piece.reward, piece.terminated, piece.truncated)
                    values = [x[row, column].flatten().tolist() for x in (*fields, piece.closing)]
                    found[stream].append(values)
        return found

    held, whole = streams(pieces), streams(wanted)
    for stream, rows in held.items():
        assert repr(rows) == repr(whole[stream][: len(rows)])  # NaN of a fault is not equal to itself
        assert len(whole[stream]) - len(rows) < 2 * (length + (n if judged else 0))
    if not judged and length == 1:
        assert sum(int((~piece.closing).sum()) for piece in pieces) == counted


def test_a_chunk_is_one_piece_where_resets_come_a_step_later():
    env = ENVS["limits, reset in the next step"]
    _, _, _, collector = parts(env, 3, 8)
    pieces, _ = play(collector, 8 * 4 + 3)
    assert [piece.reward.shape for piece in pieces] == [(8, 3)] * 4
    assert all(piece.priority.shape == (8, 3) for piece in pieces)


def test_a_policy_that_tells_no_values_gets_no_priorities_and_holds_nothing_back():
    env = ENVS["ends, reset in the next step"]
    _, _, _, collector = parts(env, 3, 8, judged=False)
    pieces, _ = play(collector, 16)
    assert len(pieces) == 2 and all(piece.priority is None for piece in pieces)


@pytest.mark.parametrize("env", ENVS)
def test_what_is_held_survives_its_state(env):
    _, _, recorder, collector = parts(ENVS[env], 3, 8)
    play(collector, 13)
    _, _, other, _ = parts(ENVS[env], 3, 8)
    other.load_state_dict(copy.deepcopy(recorder.state_dict()))
    obs = collector.now.obs
    for one, two in zip(recorder.flush(obs), other.flush(obs), strict=True):
        assert torch.equal(one.reward, two.reward) and torch.equal(one.streams, two.streams)
        assert (one.priority is None) == (two.priority is None)
        assert one.priority is None or torch.equal(one.priority, two.priority)


def test_a_net_that_says_nonsense_does_not_reach_the_replay():
    env = ENVS["ends, reset in the next step"]
    _, policy, _, collector = parts(env, 3, 4)
    with torch.no_grad():
        next(policy.parameters()).fill_(float("nan"))
    pieces, _ = play(collector, 12)
    assert all(torch.isfinite(piece.priority).all() for piece in pieces)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("style", ["same_step", "next_step"])
@pytest.mark.parametrize("privileged", [False, True])
def test_a_policy_that_carries_its_critic_judges_as_the_learner_does(n, style, privileged):
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
    for piece in play(collector, 60)[0]:
        replay.add(piece)
    learner = cfg.algorithm(env.spec)
    learner.policy.load_state_dict(policy.state_dict())
    learner.target_critic.load_state_dict(policy.critic.state_dict())
    learner.actor_learner.updates = 10_001  # the normalizer stays as it is
    leaves = torch.from_numpy(replay.tree.get(np.arange(replay.capacity)))
    place = leaves.nonzero().squeeze(1)
    batch = replay.windows.transitions(place, torch.ones(len(place)), place)
    assert (leaves[place] - learner.update(batch).priority.double()).abs().max() < 1e-5 and len(place) > 100
