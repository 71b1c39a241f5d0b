from copy import deepcopy

import pytest
import sac_cases
import td3_cases
import torch
from td3_cases import batch, spec, weights

TAU = 0.25
CASES = {"td3": td3_cases, "sac": sac_cases}


def learner(name, **changes):
    return CASES[name].learner(average_tau=TAU, policy_delay=2, **changes)


def greedy(agent, obs):
    return agent.policy.act(obs, None, torch.zeros(len(obs["obs"]))).action


@pytest.mark.parametrize("name", CASES)
def test_the_average_follows_each_actor_update(name):
    agent = learner(name)
    expected = weights(agent.policy.actor)
    assert torch.equal(weights(agent.policy.average_actor), expected)
    for number in range(1, 7):
        before = weights(agent.policy.actor)
        agent.update(batch(seed=number))
        actor = weights(agent.policy.actor)
        assert torch.equal(actor, before) == (number % 2 == 1)  # policy_delay 2
        if number % 2 == 0:
            expected = expected + TAU * (actor - expected)
        assert torch.allclose(weights(agent.policy.average_actor), expected, atol=1e-6)
    assert not torch.allclose(expected, weights(agent.policy.actor), atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_only_actions_without_exploration_are_those_of_the_average(name):
    agent, rows = learner(name), batch(6, seed=9)
    for number in range(8):
        agent.update(batch(seed=number))
    averaged = greedy(agent, rows.obs)
    x = agent.policy.actor_input(rows.obs)[:, : agent.policy.actor.inputs]
    with torch.no_grad():
        outputs = agent.policy.average_actor(x), agent.policy.actor(x)
    by_hand, own = outputs if name == "td3" else (mean.tanh() for mean, _ in outputs)
    assert torch.equal(averaged, by_hand) and not torch.allclose(averaged, own, atol=1e-5)
    mixed = torch.tensor([0.0, 1e-6, 0.0, 1e-6, 0.0, 1e-6])
    action = agent.policy.act(rows.obs, None, mixed).action
    assert torch.equal(action[::2], by_hand[::2])
    assert torch.allclose(action[1::2], own[1::2], atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_training_is_the_same_with_and_without_the_average(name):
    agents = learner(name), CASES[name].learner(policy_delay=2)
    assert agents[1].policy.average_actor is None
    for agent in agents:
        torch.manual_seed(5)
        for number in range(4):
            agent.update(batch(seed=number))
    assert torch.equal(weights(agents[0].policy.actor), weights(agents[1].policy.actor))
    assert torch.equal(weights(agents[0].critic), weights(agents[1].critic))


@pytest.mark.parametrize("name", CASES)
def test_the_average_is_saved_and_published_with_the_policy(name):
    agent, restored = learner(name), learner(name, seed=1)
    for number in range(4):
        agent.update(batch(seed=number))
    restored.load_state_dict(deepcopy(agent.state_dict()))
    copy = CASES[name].config(average_tau=TAU).policy(spec())
    copy.load_state_dict(agent.policy.state_dict())
    obs = batch(seed=7).obs
    assert torch.equal(greedy(restored, obs), greedy(agent, obs))
    assert torch.equal(copy.act(obs, None, torch.zeros(16)).action, greedy(agent, obs))
    for each in (agent, restored):
        torch.manual_seed(3)
        each.update(batch(seed=4))
        each.update(batch(seed=5))
    assert torch.equal(greedy(restored, obs), greedy(agent, obs))


@pytest.mark.parametrize("name", CASES)
def test_the_actor_learner_of_a_split_algorithm_has_the_average(name):
    config = CASES[name].config(average_tau=TAU)
    actor_learner = config.actor_learner(spec())
    before = weights(actor_learner.policy.average_actor)
    actor_learner.update(batch())
    moved = before + TAU * (weights(actor_learner.policy.actor) - before)
    assert torch.allclose(weights(actor_learner.policy.average_actor), moved, atol=1e-6)
    critic_learner = config.critic_learner(spec())
    critic_learner.peer_module.load_state_dict(actor_learner.module.state_dict())
