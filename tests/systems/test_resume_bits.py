"""Stopped, saved, loaded into fresh objects and gone on: bit for bit what it would have been."""

import copy

import pytest
import torch

from troop.algorithms import DQNConfig, RainbowConfig, TD3Config
from troop.engines.host import Host
from troop.envs import EnvPool, Toy
from troop.replay.prioritized import PriorityConfig
from troop.roles.trainer import UpdateSchedule
from troop.systems.settings import Evaluation, RunSettings
from troop.systems.sync import Sync

SMALL = {
    "actor_hidden": (8,),
    "critic_hidden": (16,),
    "atoms": 11,
    "policy_noise": 0.1,
    "lr_end": 0.1,
    "lr_updates": 100,
    "normalize_rewards": True,
}
ENVS = {
    "toy same_step": Toy("PointMass", 3, limit=7),
    "toy next_step": Toy("Countdown", 3, limit=7, autoreset="next_step"),
    "pendulum": EnvPool("Pendulum-v1", 3, 1, (("max_episode_steps", 7),)),
}


def host(
    env,
    n=1,
    overlap=False,
    recreate_every=14,
    envs=None,
    capacity=60,
    algorithm=None,
    priority=PriorityConfig(),
):  # noqa: B008
    system = Sync(
        UpdateSchedule(16, 2, overlap),
        replay_capacity=capacity,
        learning_starts=4,
        recreate_every=recreate_every,
        priority=priority,
    )
    algorithm = algorithm or TD3Config(n_step=n, **SMALL)
    env = env.with_envs(envs or env.envs)
    return Host(system.program(algorithm, env, RunSettings(1, "cpu", Evaluation(episodes=2))), 1)


def rounds(running, count):
    """The losses of so many rounds."""
    metrics = [running.round()[0] for _ in range(count)]
    return [float(m[name]) for m in metrics for name in ("loss/critic", "loss/policy") if name in m]


def leaves(tree, path=""):
    if isinstance(tree, dict):
        return {k: v for key, x in tree.items() for k, v in leaves(x, f"{path}/{key}").items()}
    return {path: tree}


def differing(one, other):
    here, there = leaves(one), leaves(other)
    assert here.keys() == there.keys()
    same = {
        k: torch.equal(v, there[k]) if isinstance(v, torch.Tensor) else v == there[k] for k, v in here.items()
    }
    return [k for k, equal in same.items() if not equal]


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_resumed_run_is_bit_equal_to_one_that_was_not_stopped(env, n, overlap):
    if env == "pendulum":
        pytest.importorskip("envpool")
    whole = host(ENVS[env], n, overlap)
    losses = rounds(whole, 54)
    end = copy.deepcopy(whole.state_dict())
    whole.close()
    first = host(ENVS[env], n, overlap)
    before = rounds(first, 27)  # mid-episode, one renewal ago; the ring has wrapped
    state = copy.deepcopy(first.state_dict())
    first.close()
    torch.manual_seed(12345)  # whatever else happened in the new process
    second = host(ENVS[env], n, overlap)
    second.load_state_dict(state)
    assert second.notes() == []
    assert before + rounds(second, 27) == losses
    assert len(losses) > 50
    assert differing(end, second.state_dict()) == []
    kept = set(leaves(end))
    for part in ("moments", "rng", "normalizer", "replay/streams/rows", "collector/explore", "scale/returns"):
        assert any(part in path for path in kept)
    second.close()


VALUE_LEARNERS = {
    "dqn": (DQNConfig(hidden=(8,), epsilon_steps=100, target_period=7), PriorityConfig()),
    "prioritized": (
        DQNConfig(hidden=(8,), n_step=3, double=True, optimizer="adam"),
        PriorityConfig(alpha=0.6, beta_end=1.0, beta_anneal_batches=80, normalize_weights_by="buffer"),
    ),
    "rainbow": (RainbowConfig(hidden=(8,), target_period=7), PriorityConfig(alpha=0.5)),
}
CHOICES = {
    "cartpole": EnvPool("CartPole-v1", 3, 1, (("max_episode_steps", 9),)),
    "pixels": EnvPool("Catch-v0", 3, 1),
}


@pytest.mark.parametrize("env", CHOICES)
@pytest.mark.parametrize("learner", VALUE_LEARNERS)
def test_value_learners_resume_bit_equal_with_their_priorities_and_noise(learner, env):
    pytest.importorskip("envpool")
    algorithm, priority = VALUE_LEARNERS[learner]

    def made():
        return host(CHOICES[env], overlap=True, algorithm=algorithm, priority=priority)

    whole = made()
    losses = rounds(whole, 54)
    end = copy.deepcopy(whole.state_dict())
    first = made()
    before = rounds(first, 27)
    state = copy.deepcopy(first.state_dict())
    torch.manual_seed(12345)
    second = made()
    second.load_state_dict(state)
    assert second.notes() == []
    assert before + rounds(second, 27) == losses and len(losses) > 30
    assert differing(end, second.state_dict()) == []
    if priority.alpha:
        assert any("leaves" in path for path in leaves(end))
    for running in (whole, first, second):
        running.close()


def test_a_run_goes_on_with_another_number_of_envs_and_says_what_it_dropped():
    first = host(ENVS["toy same_step"], n=3, envs=4, capacity=80)
    rounds(first, 30)
    state = copy.deepcopy(first.state_dict())
    held = len(first.roles["trainer"].store)
    second = host(ENVS["toy same_step"], n=3, envs=2, capacity=80)
    second.load_state_dict(state)
    kept = len(second.roles["trainer"].store)
    dropped, episodes = second.notes()
    assert dropped.startswith(f"dropped {held - kept:,} replay rows") and held - kept == held // 2
    assert "start new ones" in episodes
    assert second.roles["trainer"].version == first.roles["trainer"].version
    assert all(abs(x) < 1e6 for x in rounds(second, 10))


def test_without_a_record_of_actions_a_resumed_run_cuts_its_streams():
    first = host(ENVS["toy same_step"], recreate_every=0)
    rounds(first, 20)
    second = host(ENVS["toy same_step"], recreate_every=0)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert len(second.notes()) == 1
    streams = second.roles["trainer"].store.streams
    newest = [s * streams.length + (int(head) - 1) % streams.length for s, head in enumerate(streams.heads)]
    assert (streams.flags[newest] & 7).tolist() == [4, 4, 4]  # closing rows


def test_two_runs_of_one_seed_are_bit_equal():
    ends = []
    for _ in range(2):
        running = host(ENVS["toy next_step"])
        ends.append((rounds(running, 20), copy.deepcopy(running.state_dict())))
    assert ends[0][0] == ends[1][0]
    assert differing(ends[0][1], ends[1][1]) == []
