import pytest
import torch
from td3_cases import PLAIN, batch, learner

from troop.functional import categorical


def candidates(agent, sample):
    """Each target critic's own projected distribution, [C, B, K]."""
    action = agent.policy.actor(sample.next_obs["obs"])
    rows = agent.target_critic(sample.next_obs["obs"], action).softmax(-1)
    moved = categorical.bellman_shift(sample.reward, sample.discount, agent.critic_learner.atoms)
    return torch.stack([categorical.project(p, moved, agent.critic_learner.atoms) for p in rows])


def target(agent, sample):
    return agent.critic_learner.target(sample, sample.next_obs["obs"])


def test_clipped_double_q_selects_the_whole_distribution_with_the_lower_mean():
    agent, sample = learner(**PLAIN), batch(64)
    found, (first, second) = target(agent, sample), candidates(agent, sample)
    assert found.shape == (1, 64, 11)
    chosen = set()
    for row in range(64):
        one, other = (
            sum(p * z for p, z in zip(c[row].tolist(), agent.critic_learner.atoms.tolist(), strict=True))
            for c in (first, second)
        )
        assert torch.allclose(found[0, row], (first if one < other else second)[row], atol=1e-6)
        assert categorical.mean(found[0, row], agent.critic_learner.atoms).item() <= min(one, other) + 1e-4
        chosen.add(one < other)
    assert chosen == {True, False}


def test_without_clipped_double_q_each_critic_has_its_own_target():
    agent, sample = learner(clipped_double_q=False, **PLAIN), batch(32)
    assert torch.allclose(target(agent, sample), candidates(agent, sample), atol=1e-6)


def test_select_lower_mean_for_any_number_of_critics_with_ties_to_the_last():
    random = torch.Generator().manual_seed(0)
    atoms = torch.linspace(-1, 1, 5)
    for count in (1, 2, 3, 5):
        rows = torch.randn(count, 40, 5, generator=random).softmax(-1)
        found = categorical.select_lower_mean(rows, atoms.expand(40, 5))
        means = (rows * atoms).sum(-1)
        for row in range(40):
            best = min(range(count), key=lambda c: means[c, row].item())
            assert torch.equal(found[row], rows[best, row])
    tied = torch.tensor([[[0.0, 0, 1, 0, 0]], [[0.5, 0, 0, 0, 0.5]]])  # both have mean 0
    assert torch.equal(categorical.select_lower_mean(tied, atoms.expand(1, 5)), tied[1])
    assert torch.equal(
        categorical.select_lower_mean(torch.cat((tied, tied[:1])), atoms.expand(1, 5)), tied[0]
    )


def test_scalar_critics_use_the_clipped_double_q_target():
    agent, sample = learner(atoms=0, **PLAIN), batch(20)
    found = target(agent, sample)
    action = agent.policy.actor(sample.next_obs["obs"])
    for row in range(20):
        one = agent.target_critic(sample.next_obs["obs"][row : row + 1], action[row : row + 1])
        values = one.flatten().tolist()
        by_hand = sample.reward[row].item() + sample.discount[row].item() * min(values)
        assert found[0, row].item() == pytest.approx(by_hand, abs=1e-5)


@pytest.mark.parametrize("atoms", [0, 11])
def test_targets_bootstrap_unless_the_discount_is_zero(atoms):
    agent = learner(atoms=atoms, **PLAIN)
    for discount, depends in ((0.0, False), (0.9, True)):
        one, other = batch(discount=discount), batch(discount=discount)
        other.next_obs["obs"].mul_(-3).add_(1)
        same = torch.allclose(target(agent, one), target(agent, other), atol=1e-6)
        assert same != depends


@pytest.mark.parametrize("kept", [True, False])
def test_target_actions_come_from_the_target_policy_if_enabled(kept):
    agent, sample = learner(target_policy=kept, **PLAIN), batch()
    before = target(agent, sample)
    with torch.no_grad():
        for parameter in agent.policy.actor.parameters():
            parameter.add_(0.5)
    assert torch.equal(before, target(agent, sample)) == kept


def noisy_actions(agent, sample):
    sample_obs = []
    agent.target_critic.register_forward_pre_hook(lambda _, inputs: sample_obs.append(inputs[1].clone()))
    target(agent, sample)
    return sample_obs[0], agent.policy.actor(sample.next_obs["obs"])


def test_target_smoothing_is_clipped_and_stays_in_the_action_range():
    settings = PLAIN | {"policy_noise": 5.0, "noise_clip": 0.1, "actor_init": 2.0}
    smoothed, plain = noisy_actions(learner(**settings), batch(400))
    assert smoothed.abs().max() <= 1
    assert (smoothed - plain).abs().max() <= 0.1 + 1e-6
    inner = plain.abs() < 0.9  # where clamping to [-1, 1] has no effect
    assert (
        (smoothed - plain)[inner].abs() > 0.099
    ).float().mean() > 0.9  # noise of 5 nearly always hits the clip


def test_target_smoothing_has_standard_deviation_policy_noise():
    smoothed, plain = noisy_actions(
        learner(**PLAIN | {"policy_noise": 0.05, "actor_init": 0.01}), batch(4000)
    )
    assert (smoothed - plain).std().item() == pytest.approx(0.05, rel=0.05)


def test_without_smoothing_target_actions_are_those_of_the_policy():
    smoothed, plain = noisy_actions(learner(**PLAIN), batch())
    assert torch.equal(smoothed, plain)


def test_privileged_observations_reach_the_critics_only():
    agent = learner(privileged=2, **PLAIN)
    one, other = batch(privileged=2), batch(privileged=2)
    other.obs["privileged"].add_(1)
    other.next_obs["privileged"].add_(1)
    still = torch.zeros(16)
    output = [agent.policy.act(b.obs, None, still).action for b in (one, other)]
    assert torch.equal(*output)
    sample_obs = [torch.cat((b.next_obs["obs"], b.next_obs["privileged"]), -1) for b in (one, other)]
    found = [agent.critic_learner.target(b, x) for b, x in zip((one, other), sample_obs, strict=True)]
    assert not torch.allclose(*found, atol=1e-4)
    losses = [agent.critic_learner.update_critic(b).metrics["loss/critic"] for b in (one, other)]
    assert losses[0] != losses[1]
    assert agent.policy.normalizer.mean.shape == (5,)


def test_elementwise_min_is_the_minimum_of_both_projections():
    agent, sample = learner(categorical_min="elementwise_min", **PLAIN), batch(64)
    both = candidates(agent, sample)
    assert torch.allclose(both.sum(-1), torch.ones(2, 64), atol=1e-5)
    found = target(agent, sample)
    assert found.shape == (1, 64, 11)
    for row in range(64):
        minimum = [min(a, b) for a, b in zip(both[0, row].tolist(), both[1, row].tolist(), strict=True)]
        assert found[0, row].tolist() == pytest.approx(minimum, abs=1e-6)
    mass = found.sum(-1)
    assert (mass <= 1 + 1e-5).all() and mass.min() < 0.9  # mass on which the critics disagree is lost
    whole = learner(clipped_double_q=False, categorical_min="elementwise_min", **PLAIN)
    assert torch.allclose(target(whole, sample), candidates(whole, sample), atol=1e-6)


def test_elementwise_min_uses_binary_cross_entropy():
    agent, sample = learner(categorical_min="elementwise_min", **PLAIN), batch()
    wanted = target(agent, sample)
    predicted = agent.critic(sample.obs["obs"], sample.action).softmax(-1)
    by_hand = torch.nn.functional.binary_cross_entropy(
        predicted, wanted.expand_as(predicted), reduction="none"
    )
    found = agent.critic_learner.update_critic(sample).metrics["loss/critic"]
    assert found.item() == pytest.approx(by_hand.mean((1, 2)).sum().item(), rel=1e-5)
