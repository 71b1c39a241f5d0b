"""Separate critic and actor learners compared with the whole algorithm."""

import copy
import dataclasses

import pytest
import torch
from td3_cases import PLAIN, batch, config, different_paths, spec, weights

from troop.core.batch import Transition
from troop.core.errors import BadInput

CASES = {
    "categorical": {},
    "scalar": {"atoms": 0},
    "one critic": {"atoms": 0, "critics": 1, "clipped_double_q": False},
    "told": {"actor_carries_critic": True},
}


def split_learners(seed=0, **changes):
    agent = []
    for name in ("critic_learner", "actor_learner"):
        torch.manual_seed(seed)
        agent.append(getattr(config(**changes), name)(spec(2)))
    return agent


def exchange_modules(critic_learner, actor_learner):
    """Copy each learner's module to the other, as PQL does asynchronously."""
    critic_learner.peer_module.load_state_dict(copy.deepcopy(actor_learner.module.state_dict()))
    actor_learner.peer_module.load_state_dict(copy.deepcopy(critic_learner.module.state_dict()))


def observations_only(sample):
    """Return the batch with everything except `obs` replaced by NaN."""
    nothing = torch.full_like(sample.reward, torch.nan)
    unknown = {k: torch.full_like(x, torch.nan) for k, x in sample.next_obs.items()}
    return Transition(sample.obs, torch.full_like(sample.action, torch.nan), nothing, nothing, unknown)


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_split_learners_in_turn_equal_the_whole_algorithm(changes):
    settings = PLAIN | changes | {"policy_delay": 1}
    torch.manual_seed(0)
    whole = config(**settings).algorithm(spec(2))
    critic_learner, actor_learner = split_learners(**settings)
    for update in range(6):
        sample = batch(seed=update, privileged=2)
        whole.update(sample)
        critic_learner.update(sample)
        exchange_modules(critic_learner, actor_learner)
        actor_learner.update(observations_only(sample))
        exchange_modules(critic_learner, actor_learner)
    assert torch.equal(weights(critic_learner.critic), weights(whole.critic))
    assert torch.equal(weights(critic_learner.target_critic), weights(whole.target_critic))
    assert torch.equal(weights(actor_learner.policy.actor), weights(whole.policy.actor))


def test_split_learners_equal_the_whole_with_a_normalizer_updated_first():
    settings = {"policy_delay": 1}
    torch.manual_seed(0)
    whole = config(**settings).algorithm(spec(2))
    critic_learner, actor_learner = split_learners(**settings)
    for update in range(4):
        sample = batch(seed=update, privileged=2)
        torch.manual_seed(update)
        whole.update(sample)
        torch.manual_seed(update)
        actor_learner.update_normalizer(sample.obs)
        exchange_modules(critic_learner, actor_learner)
        critic_learner.update(sample)
        exchange_modules(critic_learner, actor_learner)
        actor_learner.update_actor(sample.obs)
    assert torch.equal(weights(critic_learner.critic), weights(whole.critic))
    assert torch.equal(weights(actor_learner.policy.actor), weights(whole.policy.actor))
    assert torch.equal(actor_learner.policy.normalizer.mean, whole.policy.normalizer.mean)


def test_normalizer_statistics_belong_to_the_actor_learner_and_its_policy():
    critic_learner, actor_learner = split_learners()
    sample = batch(64, privileged=2)
    critic_learner.update(sample)
    assert critic_learner.peer_module.normalizer.count == 0
    actor_learner.update(sample)
    assert actor_learner.module.normalizer.count == 64
    exchange_modules(critic_learner, actor_learner)
    actor = config().policy(spec(2))
    actor.load_state_dict(actor_learner.module.state_dict())
    sample_obs = [
        policy.critic_input(sample.obs)
        for policy in (actor, critic_learner.peer_module, actor_learner.module)
    ]
    assert torch.equal(sample_obs[0], sample_obs[1]) and torch.equal(sample_obs[1], sample_obs[2])
    assert torch.allclose(sample_obs[0].mean(0), torch.zeros(5), atol=1e-5)


@pytest.mark.parametrize("actor_carries_critic", [False, True])
def test_the_peer_module_is_never_trained(actor_carries_critic):
    critic_learner, actor_learner = split_learners(actor_carries_critic=actor_carries_critic)
    before = weights(critic_learner.peer_module), weights(actor_learner.peer_module)
    for update in range(3):
        for half in (critic_learner, actor_learner):
            half.update(batch(seed=update, privileged=2))
    assert torch.equal(before[0], weights(critic_learner.peer_module))
    assert torch.equal(before[1], weights(actor_learner.peer_module))
    assert not any(
        p.requires_grad for half in (critic_learner, actor_learner) for p in half.peer_module.parameters()
    )


def test_new_policy_weights_change_targets_immediately():
    critic_learner, _ = split_learners(**PLAIN)
    sample = batch(privileged=2)
    sample_obs = critic_learner.policy.critic_input(sample.next_obs)
    before = critic_learner.target(sample, sample_obs)
    news = {k: x + 0.5 for k, x in critic_learner.peer_module.state_dict().items()}
    critic_learner.peer_module.load_state_dict(news)
    assert not torch.equal(before, critic_learner.target(sample, sample_obs))


@pytest.mark.parametrize("which", [0, 1], ids=["critic half", "policy half"])
def test_a_restored_partial_learner_continues_bit_equal(which):
    agent, other = split_learners()[which], split_learners(seed=9)[which]
    for update in range(3):
        agent.update(batch(seed=update, privileged=2))
    other.load_state_dict(copy.deepcopy(agent.state_dict()))
    for half in (agent, other):
        torch.manual_seed(4)
        for update in range(4):
            half.update(batch(seed=update, privileged=2))
    assert different_paths(agent.state_dict(), other.state_dict()) == []


def test_only_the_critic_learner_returns_priorities():
    critic_learner, actor_learner = split_learners()
    sample = dataclasses.replace(batch(privileged=2), index=torch.arange(16))
    assert critic_learner.update(sample).priority.shape == (16,)
    assert actor_learner.update(sample).priority is None


@pytest.mark.parametrize("name", ["target_policy", "delay_targets"])
def test_a_target_policy_cannot_be_split(name):
    cfg = config(**{name: True})
    flag = name.replace("_", "-")
    assert f"--algorithm.{flag} is True" in cfg.unsplittable_reason(spec())
    assert config().unsplittable_reason(spec()) is None
    for half in ("critic_learner", "actor_learner"):
        with pytest.raises(BadInput, match=f"--algorithm.no-{flag}"):
            getattr(cfg, half)(spec())
