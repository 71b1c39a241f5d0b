import pytest
import torch
from small import PLAIN, batch, learner

from troop.functional import categorical


def candidates(made, sample):
    """Each target critic's own projected distribution, [C, B, K]."""
    action = made.policy.actor(sample.next_obs["obs"])
    rows = made.target_critic(sample.next_obs["obs"], action).softmax(-1)
    moved = categorical.bellman_shift(sample.reward, sample.discount, made.critic_learner.atoms)
    return torch.stack([categorical.project(p, moved, made.critic_learner.atoms) for p in rows])


def target(made, sample):
    return made.critic_learner.target(sample, sample.next_obs["obs"])


def test_clipped_double_q_selects_the_whole_distribution_with_the_lower_mean():
    made, sample = learner(**PLAIN), batch(64)
    found, (first, second) = target(made, sample), candidates(made, sample)
    assert found.shape == (1, 64, 11)
    chosen = set()
    for row in range(64):
        one, other = (
            sum(p * z for p, z in zip(c[row].tolist(), made.critic_learner.atoms.tolist(), strict=True))
            for c in (first, second)
        )
        assert torch.allclose(found[0, row], (first if one < other else second)[row], atol=1e-6)
        assert categorical.mean(found[0, row], made.critic_learner.atoms).item() <= min(one, other) + 1e-4
        chosen.add(one < other)
    assert chosen == {True, False}


def test_without_clipped_double_q_each_critic_has_its_own_target():
    made, sample = learner(clipped_double_q=False, **PLAIN), batch(32)
    assert torch.allclose(target(made, sample), candidates(made, sample), atol=1e-6)


def test_the_lowest_of_any_number_of_critics_is_taken_and_the_last_on_a_tie():
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


def test_scalar_critics_have_td3s_target():
    made, sample = learner(atoms=0, **PLAIN), batch(20)
    found = target(made, sample)
    action = made.policy.actor(sample.next_obs["obs"])
    for row in range(20):
        one = made.target_critic(sample.next_obs["obs"][row : row + 1], action[row : row + 1])
        values = one.flatten().tolist()
        by_hand = sample.reward[row].item() + sample.discount[row].item() * min(values)
        assert found[0, row].item() == pytest.approx(by_hand, abs=1e-5)


@pytest.mark.parametrize("atoms", [0, 11])
def test_the_world_s_end_is_not_bootstrapped_and_everything_else_is(atoms):
    made = learner(atoms=atoms, **PLAIN)
    for discount, depends in ((0.0, False), (0.9, True)):
        one, other = batch(discount=discount), batch(discount=discount)
        other.next_obs["obs"].mul_(-3).add_(1)
        same = torch.allclose(target(made, one), target(made, other), atol=1e-6)
        assert same != depends


@pytest.mark.parametrize("kept", [True, False])
def test_target_actions_come_from_the_slow_copy_only_if_there_is_one(kept):
    made, sample = learner(target_policy=kept, **PLAIN), batch()
    before = target(made, sample)
    with torch.no_grad():
        for parameter in made.policy.actor.parameters():
            parameter.add_(0.5)
    assert torch.equal(before, target(made, sample)) == kept


def noisy_actions(made, sample):
    seen = []
    made.target_critic.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1].clone()))
    target(made, sample)
    return seen[0], made.policy.actor(sample.next_obs["obs"])


def test_target_smoothing_is_clipped_and_stays_in_the_action_range():
    settings = PLAIN | {"policy_noise": 5.0, "noise_clip": 0.1, "actor_init": 2.0}
    smoothed, plain = noisy_actions(learner(**settings), batch(400))
    assert smoothed.abs().max() <= 1
    assert (smoothed - plain).abs().max() <= 0.1 + 1e-6
    inner = plain.abs() < 0.9  # where the range does not cut
    assert (
        (smoothed - plain)[inner].abs() > 0.099
    ).float().mean() > 0.9  # noise of 5 nearly always hits the clip


def test_target_smoothing_has_the_width_it_says():
    smoothed, plain = noisy_actions(
        learner(**PLAIN | {"policy_noise": 0.05, "actor_init": 0.01}), batch(4000)
    )
    assert (smoothed - plain).std().item() == pytest.approx(0.05, rel=0.05)


def test_without_smoothing_target_actions_are_the_policys():
    smoothed, plain = noisy_actions(learner(**PLAIN), batch())
    assert torch.equal(smoothed, plain)


def test_privileged_columns_reach_the_critic_and_not_the_action():
    made = learner(privileged=2, **PLAIN)
    one, other = batch(privileged=2), batch(privileged=2)
    other.obs["privileged"].add_(1)
    other.next_obs["privileged"].add_(1)
    still = torch.zeros(16)
    acted = [made.policy.act(b.obs, None, still).action for b in (one, other)]
    assert torch.equal(*acted)
    seen = [torch.cat((b.next_obs["obs"], b.next_obs["privileged"]), -1) for b in (one, other)]
    found = [made.critic_learner.target(b, x) for b, x in zip((one, other), seen, strict=True)]
    assert not torch.allclose(*found, atol=1e-4)
    losses = [made.critic_learner.update_critic(b).metrics["loss/critic"] for b in (one, other)]
    assert losses[0] != losses[1]
    assert made.policy.normalizer.mean.shape == (5,)


def test_element_by_element_the_least_of_both_projections():
    made, sample = learner(categorical_min="elementwise_min", **PLAIN), batch(64)
    both = candidates(made, sample)
    assert torch.allclose(both.sum(-1), torch.ones(2, 64), atol=1e-5)
    found = target(made, sample)
    assert found.shape == (1, 64, 11)
    for row in range(64):
        least = [min(a, b) for a, b in zip(both[0, row].tolist(), both[1, row].tolist(), strict=True)]
        assert found[0, row].tolist() == pytest.approx(least, abs=1e-6)
    mass = found.sum(-1)
    assert (mass <= 1 + 1e-5).all() and mass.min() < 0.9  # what the critics do not agree on is lost
    whole = learner(clipped_double_q=False, categorical_min="elementwise_min", **PLAIN)
    assert torch.allclose(target(whole, sample), candidates(whole, sample), atol=1e-6)


def test_element_by_element_the_loss_is_binary_cross_entropy():
    made, sample = learner(categorical_min="elementwise_min", **PLAIN), batch()
    wanted = target(made, sample)
    said = made.critic(sample.obs["obs"], sample.action).softmax(-1)
    by_hand = torch.nn.functional.binary_cross_entropy(said, wanted.expand_as(said), reduction="none")
    found = made.critic_learner.update_critic(sample).metrics["loss/critic"]
    assert found.item() == pytest.approx(by_hand.mean((1, 2)).sum().item(), rel=1e-5)
