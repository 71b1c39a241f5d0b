import copy
import dataclasses
import math

import pytest
import torch
from td3_cases import PLAIN, batch, config, different_paths, learner, spec, weights

from troop.algorithms import td3
from troop.algorithms.optim import frozen_copy
from troop.functional.clip_gradient import clip_gradient


@pytest.mark.parametrize("delay", [1, 2, 3, 4])
def test_the_actor_is_updated_every_policy_delay_updates(delay):
    agent = learner(policy_delay=delay)
    for update in range(1, 13):
        before = weights(agent.policy.actor)
        outcome = agent.update(batch(seed=update))
        due = update % delay == 0
        assert torch.equal(before, weights(agent.policy.actor)) != due
        assert ("loss/policy" in outcome.metrics) == due


@pytest.mark.parametrize("critics, atoms", [(1, 0), (2, 0), (1, 11)])
def test_ddpg_by_hand(critics, atoms):
    """Three updates compared with plain PyTorch: no smoothing, no delay, target policy."""
    settings = PLAIN | {
        "critics": critics,
        "atoms": atoms,
        "policy_delay": 1,
        "target_policy": True,
        "tau": 0.05,
    }
    agent = learner(clipped_double_q=False, policy_q="first", actor_lr=1e-3, critic_lr=2e-3, **settings)
    actor, critic = copy.deepcopy(agent.policy.actor), copy.deepcopy(agent.critic)
    slow_actor, slow_critic = copy.deepcopy(agent.target_actor), copy.deepcopy(agent.target_critic)
    actor_steps = torch.optim.AdamW(actor.parameters(), lr=1e-3, weight_decay=0.0)
    critic_steps = torch.optim.AdamW(critic.parameters(), lr=2e-3, weight_decay=0.0)

    def value(outputs):
        return outputs.squeeze(-1) if not atoms else outputs.softmax(-1) @ torch.linspace(-10, 10, atoms)

    for update in range(3):
        sample = batch(seed=update)
        obs, next_obs = sample.obs["obs"], sample.next_obs["obs"]
        if atoms:
            target = agent.critic_learner.target(sample, next_obs)  # the projection has its own tests
            loss = -(target * critic(obs, sample.action).log_softmax(-1)).sum(-1).mean(-1).sum()
        else:
            with torch.no_grad():
                future = value(slow_critic(next_obs, slow_actor(next_obs)))
            target = sample.reward + sample.discount * future
            loss = sum(
                ((value(critic(obs, sample.action))[c] - target[c]) ** 2).mean() for c in range(critics)
            )
        critic_steps.zero_grad()
        loss.backward()
        critic_steps.step()
        actor_steps.zero_grad()
        (-value(critic(obs, actor(obs)))[0].mean()).backward()
        actor_steps.step()
        with torch.no_grad():
            for slow, fast in ((slow_actor, actor), (slow_critic, critic)):
                for s, f in zip(slow.parameters(), fast.parameters(), strict=True):
                    s.copy_(0.95 * s + 0.05 * f)
        outcome = agent.update(sample)
        assert outcome.metrics["loss/critic"].item() == pytest.approx(loss.item(), rel=1e-4)
    pairs = (
        (agent.policy.actor, actor),
        (agent.critic, critic),
        (agent.target_actor, slow_actor),
        (agent.target_critic, slow_critic),
    )
    for ours, by_hand in pairs:
        assert torch.allclose(weights(ours), weights(by_hand), atol=1e-5)


@pytest.mark.parametrize("which, how", [("min", torch.amin), ("mean", torch.mean), ("first", None)])
def test_actor_loss_reduces_the_critics_as_configured(which, how):
    agent, sample = learner(atoms=0, policy_q=which, **PLAIN), batch()
    obs = sample.obs["obs"]
    values = agent.critic(obs, agent.policy.actor(obs)).squeeze(-1)
    expected = -(values[0] if how is None else how(values, 0)).mean()
    assert agent.actor_learner.update_actor(sample.obs).metrics["loss/policy"].item() == pytest.approx(
        expected.item(), abs=1e-6
    )
    auto = [
        learner(atoms=0, clipped_double_q=on, **PLAIN)
        .actor_learner.update_actor(sample.obs)
        .metrics["loss/policy"]
        for on in (True, False)
    ]
    assert [x.item() for x in auto] == pytest.approx(
        [-values.amin(0).mean().item(), -values.mean(0).mean().item()], abs=1e-6
    )


def test_actor_updates_increase_q_and_do_not_change_the_critics():
    agent, sample = learner(actor_lr=1e-2, **PLAIN), batch()
    agent.critic_learner.update_critic(sample)
    before, gradient = weights(agent.critic), [p.grad.clone() for p in agent.critic.parameters()]
    losses = [agent.actor_learner.update_actor(sample.obs).metrics["loss/policy"].item() for _ in range(20)]
    assert losses[-1] < losses[0] - 1e-3
    assert torch.equal(before, weights(agent.critic))
    assert all(torch.equal(p.grad, g) for p, g in zip(agent.critic.parameters(), gradient, strict=True))
    assert all(p.requires_grad for p in agent.critic.parameters())


@pytest.mark.parametrize("tau", [0.1, 1.0])
def test_targets_move_by_exactly_tau(tau):
    agent = learner(tau=tau, target_policy=True, layer_norm=True)
    for update in range(4):
        before = weights(agent.target_critic), weights(agent.target_actor)
        agent.update(batch(seed=update))
        for old, target, online in zip(
            before, (agent.target_critic, agent.target_actor), (agent.critic, agent.policy.actor), strict=True
        ):
            assert torch.allclose(weights(target), old + tau * (weights(online) - old), atol=1e-7)


def test_delay_targets_updates_targets_only_with_the_actor():
    agent = learner(delay_targets=True, policy_delay=3)
    for update in range(1, 7):
        before = weights(agent.target_critic)
        agent.update(batch(seed=update))
        assert torch.equal(before, weights(agent.target_critic)) == (update % 3 != 0)


def test_a_frozen_copy_shares_no_memory_with_the_original():
    online = learner().critic
    copied = frozen_copy(online)
    before = weights(copied)
    with torch.no_grad():
        for parameter in online.parameters():
            parameter.add_(1)
    assert torch.equal(before, weights(copied)) and not any(p.requires_grad for p in copied.parameters())


def test_the_policy_shares_parameters_with_the_trained_actor():
    agent = learner(policy_delay=1, actor_lr=1e-2)
    acting, obs = agent.policy, batch().obs
    before = acting.act(obs, None, torch.zeros(16)).action
    agent.update(batch())
    assert not torch.equal(before, acting.act(obs, None, torch.zeros(16)).action)
    assert {p.data_ptr() for p in acting.actor.parameters()} == {
        p.data_ptr() for p in agent.policy.actor.parameters()
    }


def test_policy_weights_do_not_depend_on_the_number_of_envs():
    agent = learner(privileged=2)
    agent.update(batch(privileged=2))
    other = config().policy(spec(privileged=2, envs=9))
    other.load_state_dict(agent.policy.state_dict())
    obs = batch(9, privileged=2).obs
    still = torch.zeros(9)
    assert torch.equal(other.act(obs, None, still).action, agent.policy.act(obs, None, still).action)


def test_normalizer_learns_from_batches_and_not_from_acting():
    agent = learner()
    sample = batch(64)
    agent.policy.act(sample.obs, None, torch.full((64,), 0.3))
    assert agent.policy.normalizer.count == 0
    agent.update(sample)
    assert agent.policy.normalizer.count == 64
    assert torch.allclose(agent.policy.normalizer.mean, sample.obs["obs"].mean(0), atol=1e-6)


@pytest.mark.parametrize(
    "changes", [{}, {"atoms": 0, "target_policy": True, "lr_end": 0.1, "lr_updates": 20}]
)
def test_a_restored_learner_continues_bit_equal(changes):
    agent = learner(policy_delay=2, policy_noise=0.2, **changes)
    for update in range(5):
        agent.update(batch(seed=update))
    state = copy.deepcopy(agent.state_dict())
    other = learner(seed=7, policy_delay=2, policy_noise=0.2, **changes)
    other.load_state_dict(state)
    losses = []
    for one in (agent, other):
        torch.manual_seed(11)
        losses.append([float(one.update(batch(seed=u)).metrics["loss/critic"]) for u in range(10, 17)])
    assert losses[0] == losses[1] and all(math.isfinite(x) for x in losses[0])
    assert different_paths(agent.state_dict(), other.state_dict()) == []


@pytest.mark.parametrize("how", ["lower_mean", "elementwise_min"])
def test_priorities_of_categorical_critics_vanish_at_the_target_and_do_not_favour_broad_targets(how):
    """The KL divergence: cross entropies would add the entropy of the target, 0 after termination."""
    agent = learner(categorical_min=how, **PLAIN)
    sample = dataclasses.replace(batch(64), index=torch.arange(64))
    target = agent.critic_learner.target(sample, sample.next_obs["obs"])
    found = agent.critic_learner.loss(sample)[1][0]
    logits = agent.critic(sample.obs["obs"], sample.action).log_softmax(-1)
    for row in range(64):
        by_hand = []
        for critic in range(2):
            t, log_p = target[0, row].double(), logits[critic, row].double()
            if how == "lower_mean":
                terms = torch.special.xlogy(t, t) - t * log_p
                by_hand.append(terms.sum().item())
            else:
                p = log_p.exp()
                terms = torch.special.xlogy(t, t / p) + torch.special.xlogy(1 - t, (1 - t) / (1 - p))
                by_hand.append(terms.mean().item())
        assert found[row].item() == pytest.approx(max(by_hand), abs=1e-4)


def test_dq_da_is_clipped_element_wise_per_row(monkeypatch):
    captured = []

    def capture(action, bound):
        action.register_hook(captured.append)
        return clip_gradient(action, bound)

    monkeypatch.setattr(td3, "clip_gradient", capture)
    for bound in (1e9, 1e-3):
        learner(action_gradient_clip=bound, **PLAIN).actor_learner.update_actor(batch().obs)
    gradients = [gradient * 16 for gradient in captured]  # the loss is a mean over 16 rows
    assert gradients[0].abs().max() > 1e-2
    assert torch.allclose(gradients[1], gradients[0].clamp(-1e-3, 1e-3), atol=1e-9)


def test_the_penalty_is_the_mean_square_of_the_outputs_before_tanh_beyond_the_limit():
    plain, penalised = learner(**PLAIN), learner(preactivation_penalty=0.5, **PLAIN)
    obs = batch().obs
    for agent in (plain, penalised):
        with torch.no_grad():
            agent.policy.actor.net.layers[-1].copy_(torch.tensor([1.4, -1.6]))
    outputs = penalised.policy.actor.net(penalised.policy.critic_input(obs)).flatten().tolist()
    beyond = [max(0.0, abs(u) - 1.5) ** 2 for u in outputs]
    assert 0 < sum(x > 0 for x in beyond) < len(beyond)
    difference = penalised.actor_learner.loss(obs)[0] - plain.actor_learner.loss(obs)[0]
    assert difference.item() == pytest.approx(0.5 * sum(beyond) / len(beyond), rel=1e-3, abs=1e-5)


def test_the_penalty_moves_a_saturated_actor_back_into_the_range():
    agent = learner(preactivation_penalty=1.0, actor_lr=0.05, **PLAIN)
    with torch.no_grad():
        agent.policy.actor.net.layers[-1].fill_(6.0)  # tanh(6) = 0.99999: its gradient is 2e-5
    shares = [agent.actor_learner.update_actor(batch().obs).metrics["policy/saturation"] for _ in range(200)]
    assert shares[0] == 1.0
    assert shares[-1] < 0.5


def test_saturation_is_the_share_of_actions_beyond_the_limit():
    agent = learner(**PLAIN)
    with torch.no_grad():
        agent.policy.actor.net.layers[-2].zero_()
        agent.policy.actor.net.layers[-1].copy_(torch.tensor([math.atanh(0.96), -math.atanh(0.94)]))
    assert agent.actor_learner.update_actor(batch().obs).metrics["policy/saturation"] == 0.5
