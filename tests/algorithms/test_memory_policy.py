"""Memories of recurrent TD3 and SAC: acting, stored states, burn-in, checkpoints, weights."""

import copy
from dataclasses import replace

import pytest
import torch
from memory_cases import SMALL, SPEC, STREAMS, sequences

from troop import make_experiment
from troop.algorithms import SACGRUConfig, TD3GRUConfig
from troop.algorithms.memory_policy import Sequences
from troop.core.env import Discrete, Field
from troop.envs import Toy
from troop.replay.recorders.trajectories import TrajectoryRecorder
from troop.roles.collector import Collector, EnvFactory

TAU = 0.25  # of the averaged actor
SETTINGS = SMALL | {"normalize_observations": True}
SAC_NOISE = (
    "alpha_init",
    "alpha_lr",
    "log_std_min",
    "log_std_max",
    "noise_scale_max",
    "target_entropy_ratio",
)
TD3_NOISE = ("std_min", "std_max", "std_distribution", "preactivation_penalty")
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


def test_a_nan_in_one_sequence_skips_the_update_and_removes_only_its_priority(config):
    torch.manual_seed(0)
    learner = config.algorithm(SPEC)
    batch = sequences(learner.policy)
    bad = copy.deepcopy(batch)
    bad.reward[4, 0] = torch.nan
    results = []
    for each in (bad, batch):
        before = [x.clone() for x in learner.critic.parameters()]
        torch.manual_seed(1)
        results.append(learner.update(each))
        changed = [not torch.equal(x, y) for x, y in zip(before, learner.critic.parameters(), strict=True)]
        assert any(changed) == (each is batch)
    skipped, done = results
    assert [float(x.metrics["count/skipped_updates"]) for x in results] == [1, 0]
    assert skipped.priority[0] == 0 and skipped.priority[1:].gt(0).all() and done.priority.gt(0).all()


def test_the_shortcut_leads_observations_to_the_heads(config):
    config = replace(config, normalize_observations=False)
    long, short = config.policy(SPEC), replace(config, input_shortcut=True).policy(SPEC)
    for name in ("actor", "critic"):
        own, other = getattr(short, name).memory, getattr(long, name).memory
        assert own.features == other.features + 3
        own.load_state_dict(other.state_dict())
    obs = {"obs": torch.randn(4, 3), "privileged": torch.randn(4, 2)}
    x = torch.cat((obs["obs"], obs["privileged"]), -1).unsqueeze(0)
    state, width = long.initial_state(4), config.core_size + config.embedding
    for name, expected in (("actor", x[..., :3]), ("critic", x)):
        features, _ = getattr(short, name).memory(x, state[name])
        without, _ = getattr(long, name).memory(x, state[name])
        assert torch.equal(features[..., :width], without[..., :width])
        assert torch.equal(features[..., width:], expected)


def averaging(config, seed=0):
    torch.manual_seed(seed)
    return replace(config, average_tau=TAU, policy_delay=2).algorithm(SPEC)


def weights(module):
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone()


def greedy(policy, steps=3):
    """Return the actions [steps, 5, A] of rows that do not explore, from new episodes."""
    state, actions = policy.initial_state(5), []
    for step in range(steps):
        obs = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
        output = policy.act({"obs": obs}, state, torch.zeros(5))
        actions.append(output.action)
        state = output.state
    return torch.stack(actions)


def test_the_average_follows_each_actor_update(config):
    learner = averaging(config)
    expected = weights(learner.actor)
    assert torch.equal(weights(learner.policy.average_actor), expected)
    for number in range(1, 7):
        learner.update(sequences(learner.policy, seed=number))
        if number % 2 == 0:
            expected = expected + TAU * (weights(learner.actor) - expected)
        assert torch.allclose(weights(learner.policy.average_actor), expected, atol=1e-6)
    assert not torch.allclose(expected, weights(learner.actor), atol=1e-3)


def test_rows_without_exploration_follow_the_average_with_its_own_memory(config):
    learner = averaging(config)
    for number in range(6):
        learner.update(sequences(learner.policy, seed=number))
    policy, averaged = learner.policy, replace(config, average_tau=0.0).policy(SPEC)
    averaged.load_state_dict(policy.state_dict(), strict=False)
    own = greedy(averaged)
    averaged.actor.load_state_dict(policy.averaged.state_dict())
    assert torch.equal(greedy(policy), greedy(averaged)) and not torch.allclose(own, greedy(averaged))
    obs, state = {"obs": torch.randn(4, 3)}, policy.initial_state(4)
    state = policy.act(obs, state, torch.ones(4)).state
    mixed = policy.act(obs, state, torch.tensor([0.0, 1e-6, 0.0, 1e-6]))
    exploring, still = (
        policy.act(obs, state, torch.full((4,), 1e-6)),
        averaged.act(obs, state, torch.zeros(4)),
    )
    assert torch.equal(mixed.state["actor"]["h"][1::2], exploring.state["actor"]["h"][1::2])
    assert torch.equal(mixed.state["actor"]["h"][::2], still.state["actor"]["h"][::2])
    assert torch.allclose(mixed.action[1::2], exploring.action[1::2], atol=1e-4)
    assert torch.equal(mixed.action[::2], still.action[::2])


def test_training_is_the_same_with_and_without_the_average(config):
    config = replace(config, policy_delay=2)
    results = []
    for each in (config, replace(config, average_tau=TAU)):
        torch.manual_seed(5)
        learner = each.algorithm(SPEC)
        for number in range(4):
            learner.update(sequences(learner.policy, seed=number))
        obs = {"obs": torch.ones(4, 3)}
        output = learner.policy.act(obs, learner.policy.initial_state(4), torch.ones(4))
        results.append((weights(learner.actor), weights(learner.critic), output.action))
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


def test_the_average_is_saved_and_published_with_the_policy(config):
    learner, restored = averaging(config), averaging(config, seed=1)
    for number in range(4):
        learner.update(sequences(learner.policy, seed=number))
    restored.load_state_dict(copy.deepcopy(learner.state_dict()))
    published = learner.cfg.policy(SPEC)
    published.load_state_dict(learner.policy.state_dict())
    expected = greedy(learner.policy)
    assert torch.equal(greedy(restored.policy), expected) and torch.equal(greedy(published), expected)
    for each in (learner, restored):
        torch.manual_seed(3)
        for number in (4, 5):
            each.update(sequences(each.policy, seed=number))
    assert torch.equal(greedy(restored.policy), greedy(learner.policy))


def test_the_normalizer_counts_steps_only(config):
    learner = config.algorithm(SPEC)
    batch = sequences(learner.policy)
    batch.obs["obs"][:-1][~batch.valid] = 1e6
    learner.update(batch)
    steps = batch.obs["obs"][:-1][batch.valid]
    assert torch.allclose(learner.policy.normalizer.mean[:3], steps.mean(0), atol=1e-5)


def test_recipes_for_cpus_have_the_noise_of_sac_and_fasttd3():
    recipes = {"sac-gru": ("sac", SAC_NOISE), "td3-gru": ("fasttd3", TD3_NOISE)}
    for name, (other, settings) in recipes.items():
        own, like = (make_experiment(each, "Pendulum-v1").algorithm for each in (name, other))
        for setting in (*settings, "average_tau", "noise_repeats", "n_step", "actor_lr", "critic_lr"):
            assert getattr(own, setting) == getattr(like, setting), setting
        assert own.exploration == like.exploration and own.input_shortcut


def test_other_tasks_are_refused(config):
    assert "discrete actions" in config.unsupported_reason(replace(SPEC, action=Discrete(2)))
    image = replace(SPEC, obs={"obs": Field((1, 24, 24), torch.uint8)})
    assert "takes vectors" in config.unsupported_reason(image)
    assert config.unsupported_reason(SPEC) is None
