"""SAC with memory: whole updates against an independent version, sampling and settings."""

from dataclasses import replace

import pytest
import torch
from memory_cases import (
    ACTIONS,
    SMALL,
    SPEC,
    copies,
    critic_loss,
    features,
    gaussian,
    head,
    n_step_target,
    sequences,
    steps_of,
)

from troop.algorithms import SACGRUConfig

CONFIG = SACGRUConfig(alpha_init=0.2, alpha_lr=1e-2, **SMALL)


def plain_targets(actor, target_critic, alpha, batch, cfg):
    """Return {(t, b): y} of all steps; draws the same noise as the learner."""
    _, actor_next = features(actor, batch, "actor", cfg)
    _, critic_next = features(target_critic, batch, "critic", cfg)
    _, every = steps_of(batch, cfg.burn_in)
    noise = torch.randn(len(every), ACTIONS)
    values = {}
    for row, (t, b) in enumerate(every):
        action, log_prob = gaussian(actor, actor_next[t, b], noise[row])
        x = torch.cat((critic_next[t, b], action))
        q = min(float(head(target_critic, x, "head.nets", i)[0].detach()) for i in (0, 1))
        values[t, b] = q - float(alpha) * float(log_prob.detach())
    steps, _ = steps_of(batch, cfg.burn_in)
    return {(t, b): n_step_target(batch, values, t, b, cfg.n_step) for t, b in steps}


def plain_update(learner, batch, updates):
    """Return the networks, log alpha and the last priorities after updates in plain PyTorch."""
    cfg = learner.cfg
    actor, critic = copies(learner.actor), copies(learner.critic)
    target_critic = {name: x.detach().clone() for name, x in critic.items()}
    log_alpha = learner.policy.temperature.log_alpha.detach().clone().requires_grad_()
    adams = [torch.optim.Adam(x, 1e-2) for x in (actor.values(), critic.values(), [log_alpha])]
    for _ in range(updates):
        alpha = log_alpha.detach().exp()
        targets = plain_targets(actor, target_critic, alpha, batch, cfg)
        loss, priority = critic_loss(critic, targets, batch, cfg)
        adams[1].zero_grad()
        loss.backward()
        adams[1].step()
        own, _ = features(actor, batch, "actor", cfg)
        others, _ = features(critic, batch, "critic", cfg)
        steps, every = steps_of(batch, cfg.burn_in)
        noise = dict(zip(every, torch.randn(len(every), ACTIONS), strict=True))
        losses, log_probs = [], []
        for t, b in steps:
            action, log_prob = gaussian(actor, own[t, b], noise[t, b])
            x = torch.cat((others[t, b].detach(), action))
            q = torch.minimum(*(head(critic, x, "head.nets", i)[0] for i in (0, 1)))
            losses.append(alpha * log_prob - q)
            log_probs.append(log_prob.detach())
        adams[0].zero_grad()
        torch.stack(losses).mean().backward()
        adams[0].step()
        adams[2].zero_grad()
        (-log_alpha * (torch.stack(log_probs).mean() - ACTIONS)).sum().backward()
        adams[2].step()
        with torch.no_grad():
            for name, x in target_critic.items():
                x.lerp_(critic[name], cfg.tau)
    return actor, critic, target_critic, log_alpha, priority


@pytest.mark.parametrize("settings", [{"burn_in": 0}, {"burn_in": 3, "input_shortcut": True}, {"n_step": 3}])
def test_whole_updates_match_an_independent_version(settings):
    torch.manual_seed(0)
    learner = replace(CONFIG, **settings).algorithm(SPEC)
    batch = sequences(learner.policy)
    torch.manual_seed(1)
    *expected, log_alpha, priority = plain_update(learner, batch, 3)
    torch.manual_seed(1)
    results = [learner.update(batch) for _ in range(3)]
    for module, weights in zip((learner.actor, learner.critic, learner.target_critic), expected, strict=True):
        for name, x in module.named_parameters():
            assert torch.allclose(x, weights[name], atol=1e-5), (name, (x - weights[name]).abs().max())
    assert torch.allclose(learner.policy.temperature.log_alpha, log_alpha, atol=1e-5)
    assert torch.allclose(results[-1].priority, priority, atol=1e-4)


def distribution(policy, obs, state):
    """Return the actor's mean and log standard deviation."""
    features_of_actor, _, _ = policy.advance(obs, state, torch.ones(len(obs["obs"]), dtype=torch.bool))
    return policy.actor.head(features_of_actor)


def test_actions_are_sampled_where_exploration_is_on():
    torch.manual_seed(0)
    policy = CONFIG.policy(SPEC)
    obs, state = {"obs": torch.randn(1, 3).expand(3000, 3)}, policy.initial_state(3000)
    explore = torch.tensor([0.0, 1.0, float("inf")]).repeat_interleave(1000)
    action = policy.act(obs, state, explore).action
    mean, log_std = distribution(policy, obs, state)
    assert torch.equal(action[:1000], mean[:1000].tanh())
    sampled = torch.atanh(action[1000:2000].clamp(-0.9999, 0.9999))
    assert torch.allclose(sampled.std(0), log_std[0].exp(), rtol=0.15)
    assert torch.allclose(action[2000:].square().mean(0), torch.tensor(1 / 3), atol=0.05)


def test_noise_is_scaled_by_a_factor_of_each_episode():
    torch.manual_seed(0)
    config, rows = replace(CONFIG, log_std_max=0.0, noise_scale_max=4.0), 20_000
    factors = config.exploration.initial(rows, torch.device("cpu"))
    assert factors.min() >= 1 and factors.max() <= 4 and factors.median() == pytest.approx(2, abs=0.05)
    assert CONFIG.exploration.initial(3, torch.device("cpu")).tolist() == [1, 1, 1]
    policy = config.policy(SPEC)
    obs, state = {"obs": torch.full((rows, 3), 0.3)}, policy.initial_state(rows)
    mean, log_std = distribution(policy, obs, state)
    action = policy.act(obs, state, torch.full((rows,), 3.0)).action.double()
    quantiles = action.quantile(torch.tensor([0.1587, 0.5, 0.8413]).double(), 0).float()
    for quantile, sign in zip(quantiles, (-1, 0, 1), strict=True):
        assert torch.allclose(quantile, (mean[0] + sign * 3 * log_std[0].exp()).tanh(), atol=0.03)


def test_settings_that_do_not_fit_are_refused():
    assert "log_std_min 3 is not below" in replace(CONFIG, log_std_min=3.0).unsupported_reason(SPEC)
    assert "burn_in <= overlap < length" in replace(CONFIG, burn_in=7).unsupported_reason(SPEC)
