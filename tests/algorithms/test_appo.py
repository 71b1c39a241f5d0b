"""APPO: both kinds against independent versions, stale rows, and PPO as the special case of no lag."""

import copy
import dataclasses
import math

import pytest
import torch

from troop.algorithms import APPOConfig, ImpalaConfig, PPOConfig
from troop.algorithms.actor_critic_policy import evaluate_trajectory
from troop.algorithms.appo import adapt_kl_coef, adapt_learning_rate
from troop.core.batch import join_trajectories
from troop.envs import Toy
from troop.functional.gae import with_final_values
from troop.functional.vtrace import vtrace
from troop.replay.recorders.trajectories import TrajectoryRecorder
from troop.roles.collector import Collector, EnvFactory

PLAIN = {"normalize_observations": False, "normalize_rewards": False, "hidden": (16,)}


def rollout(config, env, behaviour=None, version=0, seed=0):
    """Return a learner and a trajectory, of its own policy or of another one with the same layers."""
    torch.manual_seed(seed)
    learner = config.algorithm(env.spec)
    policy = learner.policy if behaviour is None else behaviour(config, env)
    recorder = TrajectoryRecorder(env.envs, config.experience)
    collector = Collector(EnvFactory(env.make, 1), policy, recorder, config.exploration)
    collector.version = version
    trajectories = []
    while not trajectories:
        collector.send()
        trajectories += collector.recv()[0]
    return learner, trajectories[0]


def shifted(config, env):
    """Return a policy whose action probabilities differ clearly from those of a new one."""
    policy = config.policy(env.spec)
    with torch.no_grad():
        for x in policy.net.actor.parameters():
            x.add_(torch.randn_like(x) * 0.3)
    return policy


ENV = Toy("PointMass", 6, limit=5, discrete=True)


def first_minibatch(learner, batch):
    weight = batch.valid.float()
    return next(learner.minibatches(batch, learner.rewards(batch), weight))


def test_clip_ranges():
    assert APPOConfig(clip=0.1).clip_range == pytest.approx((1 / 1.1, 1.1))
    assert APPOConfig(clip=2.0).clip_range[0] > 0
    assert APPOConfig(clip_against="target", clip=0.4).clip_range == pytest.approx((0.6, 1.4))


@pytest.mark.parametrize("advantages, gae_lambda", [("gae", 0.95), ("vtrace", 1.0)])
def test_without_lag_the_gradient_of_the_first_epoch_is_that_of_ppo(advantages, gae_lambda):
    settings = {
        "gae_lambda": gae_lambda,
        "rollout_length": 8,
        "epochs": 1,
        "minibatches": 1,
        "entropy_coef": 0.01,
        "value_coef": 0.5,
        **PLAIN,
    }
    learner, batch = rollout(APPOConfig(advantages=advantages, value_clip=0.0, **settings), ENV)
    ppo = PPOConfig(normalize_advantages="batch", **settings).algorithm(ENV.spec)
    ppo.policy.load_state_dict(learner.policy.state_dict())
    rows = ppo.prepare(batch)
    expected, _, _ = ppo.value_and_grad(rows, torch.tensor(0.2))
    minibatch = first_minibatch(learner, batch)
    grads, _, metrics = learner.value_and_grad(minibatch)
    kl, outside = metrics[3:5]
    assert float(kl) == pytest.approx(0, abs=1e-6) and float(outside) == 0
    for ours, theirs in zip(grads, expected, strict=True):  # the standard deviations differ in n and n - 1
        assert torch.allclose(ours, theirs, rtol=0.02, atol=1e-5)


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_behaviour_kind_matches_an_independent_version(autoreset):
    env = Toy("PointMass", 6, limit=5, discrete=True, autoreset=autoreset)
    config = APPOConfig(rollout_length=8, clip=0.1, value_clip=0.2, kl_coef=0.3, **PLAIN)
    learner, batch = rollout(config, env, shifted)
    minibatch = first_minibatch(learner, batch)
    loss, metrics = learner.loss(minibatch)

    t = minibatch.trajectory
    outputs, values, final = evaluate_trajectory(learner.policy, t)
    mask, logits = t.valid.float(), outputs.log_softmax(-1).view(*t.reward.shape, -1)
    log_prob = logits.gather(-1, t.action.unsqueeze(-1)).squeeze(-1)
    ratio = (log_prob - t.extras["log_prob"]).exp()
    assert float((ratio - 1).abs().max()) > 0.2  # the data are off-policy
    with torch.no_grad():
        successor = with_final_values(values, final, t.final_index)
        v, advantage = vtrace(
            ratio.log(), t.reward, t.discount, values[:-1] * mask, successor, mask * ~t.ended, 1, 1, 1, 0.95
        )
        chosen = advantage[t.valid]
        advantage = (advantage - chosen.mean()) / chosen.std(correction=0)
    clipped = ratio.clamp(0.05, 20).clamp(1 / 1.1, 1.1)
    surrogate = torch.min(ratio.clamp(0.05, 20) * advantage, clipped * advantage)[t.valid].mean()
    error = (values[:-1] - v).square()  # before the first step values are the old ones
    entropy = -(logits.exp() * logits).sum(-1)[t.valid].mean()
    acted = t.extras["outputs"].log_softmax(-1)
    assert torch.allclose(acted.gather(-1, t.action.unsqueeze(-1)).squeeze(-1), t.extras["log_prob"])
    kl = (logits.exp() * (logits - acted)).sum(-1)[t.valid].mean()  # of the policy from the one that acted
    assert float(kl) > 0.01 and float(metrics[3]) == pytest.approx(float(kl), abs=1e-5)
    expected = -surrogate + 0.5 * 0.5 * error[t.valid].mean() - 0.003 * entropy + 0.3 * kl
    assert float(loss) == pytest.approx(float(expected), abs=1e-5)


def test_target_kind_takes_ratio_and_corrections_against_the_target_network():
    config = APPOConfig(
        clip_against="target", rollout_length=8, clip=0.4, normalize_advantages=False, value_clip=0.0, **PLAIN
    )
    learner, batch = rollout(config, ENV, shifted)
    with torch.no_grad():
        for x in learner.target.net.actor.parameters():
            x.add_(torch.randn_like(x) * 0.3)
    minibatch = first_minibatch(learner, batch)
    loss, (policy_loss, *_) = learner.loss(minibatch)

    t, shape = minibatch.trajectory, batch.reward.shape
    outputs, values, final = evaluate_trajectory(learner.policy, t)
    target_outputs, _, _ = evaluate_trajectory(learner.target, t)
    pi, pi_target = (
        x.log_softmax(-1).view(*shape, -1).gather(-1, t.action.unsqueeze(-1)).squeeze(-1)
        for x in (outputs, target_outputs)
    )
    mu = t.extras["log_prob"]
    with torch.no_grad():
        successor = with_final_values(values, final, t.final_index)
        _, advantage = vtrace(
            pi_target - mu, t.reward, t.discount, values[:-1], successor, 1.0 - t.ended.float(), 1, 1, 1, 0.95
        )
    ratio = (mu - pi_target).exp().clamp_max(2.0) * (pi - mu).exp()
    surrogate = torch.min(ratio * advantage, ratio.clamp(0.6, 1.4) * advantage).mean()
    assert float(policy_loss) == pytest.approx(-float(surrogate), abs=1e-5) and torch.isfinite(loss)


@pytest.mark.parametrize("shift", [-300.0, 300.0])
@pytest.mark.parametrize("kind", ["behaviour", "target"])
def test_probabilities_that_differ_without_bound_leave_the_gradient_finite(kind, shift):
    config = APPOConfig(clip_against=kind, rollout_length=8, **PLAIN)
    learner, batch = rollout(config, ENV)
    expected, _, _ = learner.value_and_grad(first_minibatch(learner, batch))
    batch.extras["log_prob"][2, 3] += shift  # the exponential of the difference overflows float32
    grads, loss, metrics = learner.value_and_grad(first_minibatch(learner, batch))
    assert torch.isfinite(loss) and all(torch.isfinite(x).all() for x in grads)
    assert all(torch.isfinite(x) for x in metrics)
    assert not all(torch.equal(x, y) for x, y in zip(grads, expected, strict=True))


@pytest.mark.parametrize("ratio, advantage", [(1.2, 1), (1.2, -1), (0.85, 1), (0.85, -1), (1.05, 1), (30, 1)])
def test_the_surrogate_has_no_gradient_where_the_ratio_has_left_the_clip_range(ratio, advantage, monkeypatch):
    config = APPOConfig(
        rollout_length=4, clip=0.1, value_coef=0.0, entropy_coef=0.0, normalize_advantages=False, **PLAIN
    )
    learner, batch = rollout(config, ENV)
    batch.extras["log_prob"].sub_(math.log(ratio))
    constant = torch.full_like(batch.reward, float(advantage))
    monkeypatch.setattr(learner, "targets", lambda *_: (torch.zeros_like(constant), constant))
    grads, _, _ = learner.value_and_grad(first_minibatch(learner, batch))
    clipped = (advantage > 0 and ratio > 1.1) or (advantage < 0 and ratio < 1 / 1.1)
    assert any(x.any() for x in grads) != clipped


def test_target_and_behaviour_policies_that_agree_leave_the_ratio_of_ppo():
    """Where pi_T = mu the ratio is pi / mu; where pi_T = pi it is min(mu / pi, 2) pi / mu, at most 1."""
    config = APPOConfig(
        clip_against="target", rollout_length=8, clip=0.4, normalize_advantages=False, value_clip=0.0, **PLAIN
    )
    learner, batch = rollout(config, ENV, shifted)
    minibatch = first_minibatch(learner, batch)
    mu, outputs = batch.extras["log_prob"], evaluate_trajectory(learner.policy, minibatch.trajectory)[0]
    action = minibatch.trajectory.action.flatten()
    pi = learner.policy.distribution.log_prob(outputs, action).view_as(mu).detach()
    mu, fractions = minibatch.trajectory.extras["log_prob"], []
    for target, ratio in ((mu, (pi - mu).exp()), (pi, (mu - pi).exp().clamp_max(2) * (pi - mu).exp())):
        _, metrics = learner.loss(dataclasses.replace(minibatch, old_log_prob=target))
        fractions.append(float(metrics[4]))
        assert fractions[-1] == pytest.approx(float(((ratio < 0.6) | (ratio > 1.4)).float().mean()))
    assert fractions[0] > 0


def test_rows_of_old_policies_do_not_change_the_gradient():
    config = APPOConfig(rollout_length=6, max_policy_lag=3, normalize_advantages=False, **PLAIN)
    learner, fresh = rollout(config, ENV, version=10)
    _, stale = rollout(config, ENV, shifted, version=2, seed=5)
    learner.updates = 10
    other = config.algorithm(ENV.spec)
    other.load_state_dict(copy.deepcopy(learner.state_dict()))
    metrics = learner.update(join_trajectories([fresh, stale])).metrics
    other.update(fresh)
    assert float(metrics["policy/stale_rows"]) == stale.valid.sum()
    for one, two in zip(learner.policy.parameters(), other.policy.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6)


def test_the_target_network_is_copied_periodically_and_shares_the_normalizer():
    config = APPOConfig(clip_against="target", rollout_length=6, target_update_period=2, hidden=(8,), lr=0.01)
    learner, batch = rollout(config, ENV)
    assert learner.target.normalizer is learner.policy.normalizer
    learner.update(batch)  # initialises the statistics
    learner.update(batch)
    same = [
        torch.equal(x, y)
        for x, y in zip(learner.policy.parameters(), learner.target.parameters(), strict=True)
    ]
    assert all(same)
    learner.update(batch)
    assert not torch.equal(*(module.net.critic.layers[-1] for module in (learner.policy, learner.target)))


def test_symmetric_kl_replaces_the_entropy_bonus_and_is_bounded():
    settings = {"rollout_length": 6, "entropy_coef": 0.5, **PLAIN}
    plain, batch = rollout(APPOConfig(**settings), ENV, shifted)
    other = APPOConfig(exploration_loss="symmetric_kl", **settings).algorithm(ENV.spec)
    for scale in (1.0, 1e4):  # almost deterministic: the divergence is above its bound
        with torch.no_grad():
            plain.policy.net.actor.layers[-1].mul_(scale)
        other.policy.load_state_dict(plain.policy.state_dict())
        minibatch = first_minibatch(plain, batch)
        (one, metrics), (two, _) = plain.loss(minibatch), other.loss(minibatch)
        p = evaluate_trajectory(plain.policy, minibatch.trajectory)[0].softmax(-1)
        u = torch.full_like(p, 1 / p.shape[-1])
        slow = ((p - u) * (p.clamp_min(1e-30).log() - u.log())).sum(-1).mean() / 2
        expected = min(30.0, float(slow)) + float(metrics[2])
        assert float(two - one) == pytest.approx(0.5 * expected, abs=2e-5 * scale**0.25)
    grads, _, _ = other.value_and_grad(minibatch)
    assert all(torch.isfinite(x).all() for x in grads)


def test_coefficients_adapt_to_the_kl_divergence_within_their_bounds():
    assert [adapt_kl_coef(1.0, kl, 0.01) for kl in (0.021, 0.02, 0.005, 0.0049)] == [1.5, 1.0, 1.0, 0.5]
    assert adapt_kl_coef(1e-4, 0.0, 0.01) == 1e-4 and adapt_kl_coef(1e4, 1.0, 0.01) == 1e4
    rates = [adapt_learning_rate(3e-4, kl, 0.008) for kl in (0.017, 0.016, 0.004, 0.0)]
    assert rates == pytest.approx([2e-4, 3e-4, 3e-4, 4.5e-4])
    assert adapt_learning_rate(1e-6, 1.0, 0.008) == 1e-6 and adapt_learning_rate(9e-3, 0.0, 0.008) == 1e-2


@pytest.mark.parametrize(
    "settings, name, changed",
    [
        ({"clip_against": "target", "kl_coef": 0.5, "kl_target": 0.01}, "kl_coef", 0.25),
        ({"kl_coef": 0.5, "kl_target": 1e-9}, "kl_coef", 0.75),
        ({"desired_kl": 1e-9, "lr": 3e-3}, "lr", 2e-3),
        ({"desired_kl": 1e9, "lr": 2e-3}, "lr", 3e-3),
    ],
)
def test_adapted_coefficients_are_used_reported_and_saved(settings, name, changed):
    config = APPOConfig(rollout_length=6, **settings, **PLAIN)
    learner, batch = rollout(config, ENV, shifted)
    metrics = learner.update(batch).metrics
    assert getattr(learner, name) == pytest.approx(changed)
    metric = {"lr": "policy/learning_rate", "kl_coef": "policy/kl_coef"}[name]
    assert float(metrics[metric]) == pytest.approx(changed)
    other = config.algorithm(ENV.spec)
    state = copy.deepcopy(learner.state_dict())
    other.load_state_dict(state)
    assert getattr(other, name) == pytest.approx(changed)
    if name == "lr":
        assert float(other.optimizer.optimizer.param_groups[0]["lr"]) == pytest.approx(changed)
    else:
        assert float(first_minibatch(other, batch).kl_coef) == pytest.approx(changed)
    del state["lr"], state["kl_coef"]  # of an older release
    config.algorithm(ENV.spec).load_state_dict(state)


def test_options_of_the_kl_divergence_that_have_no_effect_are_refused():
    continuous = Toy("PointMass", 6, limit=5).spec
    assert "discrete" in APPOConfig(exploration_loss="symmetric_kl").unsupported_reason(continuous)
    assert APPOConfig(exploration_loss="symmetric_kl").unsupported_reason(ENV.spec) is None
    assert "--kl-coef" in APPOConfig(kl_target=0.01).unsupported_reason(continuous)
    assert "behaviour" in APPOConfig(clip_against="target", desired_kl=0.01).unsupported_reason(continuous)


def test_outputs_of_the_policy_are_only_sent_if_a_divergence_from_it_is_used():
    for settings, recorded in (({}, False), ({"kl_coef": 0.1}, True), ({"desired_kl": 0.01}, True)):
        _, batch = rollout(APPOConfig(rollout_length=6, **settings, **PLAIN), ENV)
        assert ("outputs" in batch.extras) == recorded
    _, batch = rollout(APPOConfig(clip_against="target", kl_coef=1.0, rollout_length=6, **PLAIN), ENV)
    assert "outputs" not in batch.extras


@pytest.mark.parametrize("kind", ["behaviour", "target"])
@pytest.mark.parametrize("core", ["none", "gru"])
def test_a_saved_learner_continues_equal(kind, core):
    config = APPOConfig(
        clip_against=kind, rollout_length=6, epochs=2, minibatches=3, hidden=(8, 8), core=core, core_size=4
    )
    learner, batch = rollout(config, ENV)
    for _ in range(2):
        learner.update(batch)
    other = config.algorithm(ENV.spec)
    other.load_state_dict(copy.deepcopy(learner.state_dict()))
    for each in (learner, other):
        torch.manual_seed(3)
        each.update(batch)
    for one, two in zip(learner.policy.parameters(), other.policy.parameters(), strict=True):
        assert torch.equal(one, two)


def test_the_learning_rate_falls_linearly_to_zero():
    learner, batch = rollout(APPOConfig(rollout_length=8, anneal_steps=480, **PLAIN), ENV)
    for expected in (1.0, 0.9, 0.8):
        learner.update(batch)
        assert learner.lr == pytest.approx(learner.cfg.lr * expected)
    restored = learner.cfg.algorithm(ENV.spec)
    restored.load_state_dict(learner.state_dict())
    restored.update(batch)
    assert restored.lr == pytest.approx(learner.cfg.lr * 0.7)


@pytest.mark.parametrize("config", [APPOConfig(rho_bar=0.5), ImpalaConfig(rho_bar=0.5)])
def test_thresholds_for_which_vtrace_is_not_proved_are_refused(config):
    reason = config.unsupported_reason(ENV.spec)
    assert reason is not None and "--rho-bar 0.5" in reason and "--c-bar 1" in reason
