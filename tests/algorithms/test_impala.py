"""IMPALA: whole updates against an independent version, reward clipping, and the effect of its options."""

import copy

import pytest
import torch
from torch import nn

from troop.algorithms import ImpalaConfig
from troop.algorithms.impala import clip_rewards
from troop.envs import Toy
from troop.replay.recorders.trajectories import TrajectoryRecorder
from troop.roles.collector import Collector, EnvFactory


def rollout(config, env, seed=0):
    """Return a learner and a trajectory that an older policy than its own has collected."""
    torch.manual_seed(seed)
    learner, behaviour = config.algorithm(env.spec), config.policy(env.spec)
    recorder = TrajectoryRecorder(env.envs, config.experience)
    collector = Collector(EnvFactory(env.make, 1), behaviour, recorder, config.exploration)
    trajectories = []
    while not trajectories:
        collector.send()
        trajectories += collector.recv()[0]
    return learner, trajectories[0]


def network(x, layers):
    for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
        x = torch.tanh(x @ weight.t() + bias)
    return x @ layers[-2].t() + layers[-1]


def plain_update(learner, batch):
    """One update in plain PyTorch: V-trace by its definition, sums over all steps, RMSProp of TensorFlow."""
    cfg, net = learner.cfg, learner.policy.net
    actor, critic = (
        [x.detach().clone().requires_grad_() for x in part.layers] for part in (net.actor, net.critic)
    )
    parameters = [*actor, *critic]
    logits = network(batch.obs["obs"][:-1], actor).log_softmax(-1)
    log_prob = logits.gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
    value = network(batch.obs["obs"], critic).squeeze(-1)
    final = network(batch.final_obs["obs"], critic).squeeze(-1).tolist()
    finals = dict(zip(batch.final_index.tolist(), final, strict=True))
    rho = (log_prob - batch.extras["log_prob"]).exp().detach()
    steps, streams = batch.reward.shape
    target, advantage = torch.zeros(steps + 1, streams), torch.zeros(steps, streams)

    def successor(t, b):
        return finals.get(t * streams + b, float(value[t + 1, b]))

    for b in range(streams):
        for s in range(steps - 1, -1, -1):
            total, weight = float(value[s, b]), 1.0
            for t in range(s, steps):
                if not batch.valid[t, b]:
                    break
                discount = float(batch.discount[t, b])
                td_error = float(batch.reward[t, b]) + discount * successor(t, b) - float(value[t, b])
                total += weight * min(cfg.rho_bar, float(rho[t, b])) * td_error
                weight *= discount * cfg.trace_lambda * min(cfg.c_bar, float(rho[t, b]))
                if batch.ended[t, b]:
                    break
            target[s, b] = total
            continues = not batch.ended[s, b] and s + 1 < steps and batch.valid[s + 1, b]
            next_target = float(target[s + 1, b]) if continues else successor(s, b)
            td_error = (
                float(batch.reward[s, b]) + float(batch.discount[s, b]) * next_target - float(value[s, b])
            )
            advantage[s, b] = min(cfg.pg_rho_bar, float(rho[s, b])) * td_error
    mask = batch.valid.float()
    loss = -(log_prob * advantage * mask).sum()
    loss = loss + cfg.baseline_cost * 0.5 * ((target[:-1] - value[:-1]).square() * mask).sum()
    loss = loss + cfg.entropy_cost * ((logits.exp() * logits).sum(-1) * mask).sum()
    if cfg.reduction == "mean":
        loss = loss / mask.sum()
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, cfg.max_grad_norm)
    with torch.no_grad():
        for x in parameters:
            square = cfg.decay * torch.ones_like(x) + (1 - cfg.decay) * x.grad.square()
            x -= cfg.lr * x.grad / (square + cfg.eps).sqrt()
    return parameters


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("clips", [{}, {"rho_bar": 2.0, "pg_rho_bar": 1.5, "trace_lambda": 0.8}])
def test_a_whole_update_matches_an_independent_version(reduction, autoreset, clips):
    env = Toy("PointMass", 5, limit=6, autoreset=autoreset, discrete=True)
    config = ImpalaConfig(unroll_length=10, reduction=reduction, hidden=(16, 16), **clips)
    learner, batch = rollout(config, env)
    assert batch.ended.any() and (autoreset == "same_step" or not batch.valid.all())
    expected = plain_update(learner, batch)
    metrics = learner.update(batch).metrics
    ours = [*learner.policy.net.actor.layers, *learner.policy.net.critic.layers]
    for one, two in zip(ours, expected, strict=True):
        assert torch.allclose(one, two, atol=1e-5), float((one - two).abs().max())
    assert float(metrics["policy/log_ratio"]) > 0.001  # the data are off-policy


def test_without_correction_the_data_count_as_on_policy():
    env = Toy("PointMass", 5, limit=6, discrete=True)
    learner, batch = rollout(ImpalaConfig(unroll_length=8, correction="none", hidden=(16,)), env)
    corrected = ImpalaConfig(unroll_length=8, hidden=(16,)).algorithm(env.spec)
    corrected.load_state_dict(copy.deepcopy(learner.state_dict()))
    with_own_probabilities = copy.deepcopy(batch)
    outputs, _, _ = learner.policy({"obs": batch.obs["obs"][:-1].flatten(0, 1)})
    log_prob = learner.policy.distribution.log_prob(outputs, batch.action.flatten())
    with_own_probabilities.extras["log_prob"].copy_(log_prob.detach().view_as(batch.reward))
    grads, _, _ = learner.value_and_grad(batch, batch.reward)
    expected, _, _ = corrected.value_and_grad(with_own_probabilities, batch.reward)
    different, _, _ = corrected.value_and_grad(batch, batch.reward)
    assert all(torch.allclose(x, y, atol=1e-5) for x, y in zip(grads, expected, strict=True))
    assert any(not torch.allclose(x, y, atol=1e-4) for x, y in zip(grads, different, strict=True))


def test_reward_clipping():
    reward = torch.tensor([-10.0, -0.5, 0.0, 0.5, 10.0])
    assert torch.equal(clip_rewards(reward, "none"), reward)
    assert clip_rewards(reward, "abs_one").tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0]
    soft = 5 * torch.tanh(reward / 5)
    expected = torch.where(reward < 0, 0.3 * soft, soft)
    assert torch.equal(clip_rewards(reward, "soft_asymmetric"), expected)


def test_the_learning_rate_falls_to_zero_over_env_steps():
    env = Toy("PointMass", 5, limit=6, discrete=True)
    learner, batch = rollout(ImpalaConfig(unroll_length=8, anneal_steps=80, hidden=(16,)), env)
    rates = []
    for _ in range(4):
        learner.update(batch)
        rates.append(learner.optimizer.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([6e-4, 3e-4, 0.0, 0.0])
