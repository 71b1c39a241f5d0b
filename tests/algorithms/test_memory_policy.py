"""Memories of recurrent TD3 and SAC: acting, stored states, burn-in, checkpoints, weights."""

import copy
from dataclasses import replace

import pytest
import torch
from memory_cases import SMALL, SPEC, STREAMS, sequences

from troop.algorithms import SACGRUConfig, TD3GRUConfig
from troop.algorithms.memory_policy import Sequences
from troop.core.env import Discrete, Field
from troop.envs import Toy
from troop.replay.recorders.trajectories import TrajectoryRecorder
from troop.roles.collector import Collector, EnvFactory

SETTINGS = SMALL | {"normalize_observations": True}
CONFIGS = {"td3-gru": TD3GRUConfig(**SETTINGS), "sac-gru": SACGRUConfig(**SETTINGS)}


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


def acted(config, env, vector_steps):
    """Return the policy, a trajectory of it, and the states [T, B, H] of both memories while acting."""
    torch.manual_seed(0)
    policy = config.policy(env.spec)
    states, act = [], policy.act

    def recording_act(obs, state, explore):
        output = act(obs, state, explore)
        states.append({name: output.state[name]["h"] for name in ("actor", "critic")})
        return output

    policy.act = recording_act
    recorder = TrajectoryRecorder(env.envs, replace(config.experience, length=vector_steps))
    collector = Collector(EnvFactory(env.make, 1), policy, recorder, config.exploration)
    trajectories = []
    while len(trajectories) < 2:  # the second one begins within episodes
        collector.send()
        trajectories += collector.recv()[0]
    taken = states[vector_steps : 2 * vector_steps]
    stacked = {name: torch.stack([each[name] for each in taken]) for name in ("actor", "critic")}
    return policy, trajectories[1], stacked


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("burn_in", [0, 3])
def test_a_sequence_reproduces_the_states_of_acting(config, autoreset, burn_in):
    env = Toy("PointMass", 4, limit=7, autoreset=autoreset, last_step=True)
    policy, batch, states = acted(config, env, 10)
    assert batch.started.any() and batch.state["actor"]["h"].any()
    rows = Sequences.of(policy, batch, burn_in)
    for name, module in (("actor", policy.actor), ("critic", policy.critic)):
        features, _ = rows.features(module.memory, name)
        h = features[:, : config.core_size].view(10 - burn_in, 4, -1)
        valid = batch.valid[burn_in:]  # of a row without a step the collector resets the state afterwards
        assert torch.allclose(h[valid], states[name][burn_in:][valid], atol=1e-6)


def test_the_burn_in_corrects_a_stale_state_and_has_no_gradient(config):
    env = Toy("PointMass", 4, limit=50, last_step=True)
    policy, batch, states = acted(config, env, 20)
    stale = copy.deepcopy(batch)
    for part in ("actor", "critic"):
        stale.state[part]["h"].add_(0.5)
    errors = []
    for burn_in in (0, 4, 12):
        features, _ = Sequences.of(policy, stale, burn_in).features(policy.actor.memory, "actor")
        first = features[:4, : config.core_size]
        errors.append(float((first - states["actor"][burn_in]).abs().mean()))
    assert errors[0] > 1.5 * errors[1] > 3 * errors[2]
    stale.obs["obs"].requires_grad_()
    features, _ = Sequences.of(policy, stale, 5).features(policy.actor.memory, "actor")
    (gradient,) = torch.autograd.grad(features.sum(), stale.obs["obs"])
    assert not gradient[:5].any() and gradient[5:-1].any()


def test_each_memory_has_its_own_state_and_is_reset_alone(config):
    policy = config.policy(SPEC)
    obs, zeros = {"obs": torch.randn(3, 3)}, torch.zeros(3)
    first = policy.act(obs, policy.initial_state(3), zeros)
    assert not torch.equal(first.state["actor"]["h"], first.state["critic"]["h"])
    reset = policy.reset_state(first.state, torch.tensor([True, False, True]))
    for name in ("actor", "critic"):
        assert not reset[name]["h"][[0, 2]].any()
        assert torch.equal(reset[name]["h"][1], first.state[name]["h"][1])
    again = policy.act(obs, reset, zeros)
    assert torch.equal(again.action[[0, 2]], first.action[[0, 2]])
    assert not torch.equal(again.action[1], first.action[1])


def test_weights_scale_the_errors_of_whole_sequences(config):
    torch.manual_seed(0)
    config = replace(config, normalize_observations=False)
    learner = config.algorithm(SPEC)
    batch = sequences(learner.policy)
    weight = torch.zeros(STREAMS)
    weight[2] = 2.0
    losses = []
    for each in (
        replace(batch, weight=weight),
        replace(batch, weight=weight, reward=torch.where(weight > 0, batch.reward, 9.0)),
        replace(batch, weight=weight / 2),
    ):
        torch.manual_seed(1)
        losses.append(float(learner.value_and_grad(each)[1]))
    assert losses[0] == losses[1] == pytest.approx(2 * losses[2], rel=1e-5)


def test_the_normalizer_counts_steps_only(config):
    learner = config.algorithm(SPEC)
    batch = sequences(learner.policy)
    batch.obs["obs"][:-1][~batch.valid] = 1e6
    learner.update(batch)
    steps = batch.obs["obs"][:-1][batch.valid]
    assert torch.allclose(learner.policy.normalizer.mean[:3], steps.mean(0), atol=1e-5)


def test_other_tasks_are_refused(config):
    assert "discrete actions" in config.unsupported_reason(replace(SPEC, action=Discrete(2)))
    image = replace(SPEC, obs={"obs": Field((1, 24, 24), torch.uint8)})
    assert "takes vectors" in config.unsupported_reason(image)
    assert config.unsupported_reason(SPEC) is None
