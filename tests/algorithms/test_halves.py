"""Both halves of an actor-critic, apart, against the same algorithm whole."""

import copy
import dataclasses

import pytest
import torch
from small import PLAIN, batch, config, differing, spec, weights

from troop.core.batch import Transition
from troop.core.errors import BadInput

CASES = {
    "categorical": {},
    "scalar": {"atoms": 0},
    "one critic": {"atoms": 0, "critics": 1, "clipped_double_q": False},
    "told": {"telling": True},
}


def halves(seed=0, **changes):
    made = []
    for name in ("critic_half", "policy_half"):
        torch.manual_seed(seed)
        made.append(getattr(config(**changes), name)(spec(2)))
    return made


def exchange(critic_half, policy_half):
    """What systems do with publications, at once."""
    critic_half.follows.load_state_dict(copy.deepcopy(policy_half.publishes.state_dict()))
    policy_half.follows.load_state_dict(copy.deepcopy(critic_half.publishes.state_dict()))


def blank(sample):
    """A batch of observations alone: the rest is no number."""
    nothing = torch.full_like(sample.reward, torch.nan)
    unknown = {k: torch.full_like(x, torch.nan) for k, x in sample.next_obs.items()}
    return Transition(sample.obs, torch.full_like(sample.action, torch.nan), nothing, nothing, unknown)


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_halves_in_turn_are_the_whole(changes):
    settings = PLAIN | changes | {"policy_delay": 1}
    torch.manual_seed(0)
    whole = config(**settings).algorithm(spec(2))
    critic_half, policy_half = halves(**settings)
    for update in range(6):
        sample = batch(seed=update, privileged=2)
        whole.update(sample)
        critic_half.update(sample)
        exchange(critic_half, policy_half)
        policy_half.update(blank(sample))
        exchange(critic_half, policy_half)
    assert torch.equal(weights(critic_half.critic), weights(whole.critic))
    assert torch.equal(weights(critic_half.target_critic), weights(whole.target_critic))
    assert torch.equal(weights(policy_half.policy.actor), weights(whole.policy.actor))


def test_with_a_normalizer_too_where_it_looks_before_the_critics_do():
    settings = {"policy_delay": 1}
    torch.manual_seed(0)
    whole = config(**settings).algorithm(spec(2))
    critic_half, policy_half = halves(**settings)
    for update in range(4):
        sample = batch(seed=update, privileged=2)
        torch.manual_seed(update)
        whole.update(sample)
        torch.manual_seed(update)
        policy_half.observe(sample.obs)
        exchange(critic_half, policy_half)
        critic_half.update(sample)
        exchange(critic_half, policy_half)
        policy_half.climb(sample.obs)
    assert torch.equal(weights(critic_half.critic), weights(whole.critic))
    assert torch.equal(weights(policy_half.policy.actor), weights(whole.policy.actor))
    assert torch.equal(policy_half.policy.normalizer.mean, whole.policy.normalizer.mean)


def test_statistics_belong_to_the_policy_half_and_travel_with_the_policy():
    critic_half, policy_half = halves()
    sample = batch(64, privileged=2)
    critic_half.update(sample)
    assert critic_half.follows.normalizer.count == 0
    policy_half.update(sample)
    assert policy_half.publishes.normalizer.count == 64
    exchange(critic_half, policy_half)
    actor = config().policy(spec(2))
    actor.load_state_dict(policy_half.publishes.state_dict())
    seen = [policy.seen(sample.obs) for policy in (actor, critic_half.follows, policy_half.publishes)]
    assert torch.equal(seen[0], seen[1]) and torch.equal(seen[1], seen[2])
    assert torch.allclose(seen[0].mean(0), torch.zeros(5), atol=1e-5)


@pytest.mark.parametrize("telling", [False, True])
def test_what_is_followed_is_never_trained(telling):
    critic_half, policy_half = halves(telling=telling)
    before = weights(critic_half.follows), weights(policy_half.follows)
    for update in range(3):
        for half in (critic_half, policy_half):
            half.update(batch(seed=update, privileged=2))
    assert torch.equal(before[0], weights(critic_half.follows))
    assert torch.equal(before[1], weights(policy_half.follows))
    assert not any(p.requires_grad for half in (critic_half, policy_half) for p in half.follows.parameters())


def test_news_of_the_policy_changes_targets_at_once():
    critic_half, _ = halves(**PLAIN)
    sample = batch(privileged=2)
    seen = critic_half.policy.seen(sample.next_obs)
    before = critic_half.target(sample, seen)
    news = {k: x + 0.5 for k, x in critic_half.follows.state_dict().items()}
    critic_half.follows.load_state_dict(news)
    assert not torch.equal(before, critic_half.target(sample, seen))


@pytest.mark.parametrize("which", [0, 1], ids=["critic half", "policy half"])
def test_a_half_is_its_state(which):
    made, other = halves()[which], halves(seed=9)[which]
    for update in range(3):
        made.update(batch(seed=update, privileged=2))
    other.load_state_dict(copy.deepcopy(made.state_dict()))
    for half in (made, other):
        torch.manual_seed(4)
        for update in range(4):
            half.update(batch(seed=update, privileged=2))
    assert differing(made.state_dict(), other.state_dict()) == []


def test_priorities_come_from_the_critic_half():
    critic_half, policy_half = halves()
    sample = dataclasses.replace(batch(privileged=2), index=torch.arange(16))
    assert critic_half.update(sample).priority.shape == (16,)
    assert policy_half.update(sample).priority is None


@pytest.mark.parametrize("name", ["target_policy", "delay_targets"])
def test_a_slow_policy_cannot_be_split(name):
    cfg = config(**{name: True})
    flag = name.replace("_", "-")
    assert f"--algorithm.{flag} is True" in cfg.refuse_split()
    assert config().refuse_split() is None
    for half in ("critic_half", "policy_half"):
        with pytest.raises(BadInput, match=f"--algorithm.no-{flag}"):
            getattr(cfg, half)(spec())
