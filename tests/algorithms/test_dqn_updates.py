import copy
import math

import pytest
import torch
from dqn_cases import C51_PARTS, C51_SMALL, SPEC, batch, learner, mean_of
from td3_cases import different_paths, weights

from troop.algorithms import C51Config, DQNConfig, RainbowConfig
from troop.core.devices import cpp_compiler


def targets(agent, sample):
    noise = () if isinstance(agent.cfg, C51Config) else (None,)
    return agent.target(sample, sample.next_obs["obs"], *noise)


def best(values):
    """Return the index of the first maximum."""
    values = values.tolist()
    return values.index(max(values))


@pytest.mark.parametrize("double", [False, True])
def test_targets_by_hand(double):
    agent, sample = learner(double=double), batch()
    found = targets(agent, sample)
    for row in range(16):
        after = sample.next_obs["obs"][row : row + 1]
        target_output, online = agent.target_q(after)[0], agent.q(after)[0]
        value = target_output[best(online if double else target_output)]
        by_hand = sample.reward[row] + sample.discount[row] * value
        assert found[row].item() == pytest.approx(by_hand.item(), abs=1e-5)


@pytest.mark.parametrize("kind", [{}, C51_PARTS])
def test_double_q_differs_only_where_online_and_target_networks_differ(kind):
    sample = batch()
    plain, double = learner(**kind), learner(**kind | {"double": True})
    assert not torch.allclose(targets(plain, sample), targets(double, sample))
    plain, double = learner(spread=0.0, **kind), learner(spread=0.0, **kind | {"double": True})
    assert torch.allclose(targets(plain, sample), targets(double, sample), atol=1e-6)


@pytest.mark.parametrize(
    "kind, double", [(C51_SMALL, False), (C51_PARTS, False), (C51_PARTS | {"double": True}, True)]
)
def test_c51_targets_by_hand(kind, double):
    agent, sample = learner(**kind), batch()
    found = targets(agent, sample)
    assert torch.allclose(found.sum(-1), torch.ones(16), atol=1e-6)
    for row in range(16):
        after = sample.next_obs["obs"][row : row + 1]
        target_output, online = agent.target_q(after)[0], agent.q(after)[0]
        means = torch.tensor([mean_of(x, agent) for x in (online if double else target_output)])
        projected = [0.0] * 11
        for mass, atom in zip(target_output[best(means)].softmax(-1).tolist(), range(-5, 6), strict=True):
            place = min(max(float(sample.reward[row] + sample.discount[row] * atom), -5.0), 5.0) + 5
            below = min(math.floor(place), 9)
            projected[below] += mass * (below + 1 - place)
            projected[below + 1] += mass * (place - below)
        assert found[row].tolist() == pytest.approx(projected, abs=1e-5)


@pytest.mark.parametrize("loss", ["huber", "squared"])
def test_loss_priorities_and_weights_by_hand(loss):
    weight = torch.rand(16, generator=torch.Generator().manual_seed(3))
    agent, sample = learner(loss=loss, double=True), batch(index=True, weight=weight)
    target, predicted = targets(agent, sample), agent.q(sample.obs["obs"])
    total, priorities = 0.0, []
    for row in range(16):
        error = abs(float(predicted[row, sample.action[row]] - target[row]))
        priorities.append(error)
        squared = loss == "squared" or error <= 1
        total += float(weight[row]) * (error**2 / 2 if squared else error - 0.5) / 16
    outcome = agent.update(sample)
    assert float(outcome.metrics["loss/critic"]) == pytest.approx(total, rel=1e-4)
    assert outcome.priority.tolist() == pytest.approx(priorities, abs=1e-4)
    assert max(priorities) > 1 > min(priorities)
    assert not outcome.priority.requires_grad
    assert learner().update(batch()).priority is None


def test_c51_loss_is_the_cross_entropy_and_priority_the_kl_divergence():
    weight = torch.rand(16, generator=torch.Generator().manual_seed(3))
    agent, sample = learner(**C51_SMALL), batch(index=True, weight=weight)
    target, predicted = targets(agent, sample), agent.q(sample.obs["obs"]).log_softmax(-1)
    by_hand = [-sum(target[r] * predicted[r, sample.action[r]]).item() for r in range(16)]
    own = [-sum(p * math.log(p) for p in target[r].tolist() if p > 0) for r in range(16)]
    outcome = agent.update(sample)
    divergence = [x - entropy for x, entropy in zip(by_hand, own, strict=True)]
    assert outcome.priority.tolist() == pytest.approx(divergence, abs=1e-4)
    total = sum(w * x for w, x in zip(weight.tolist(), by_hand, strict=True)) / 16
    assert float(outcome.metrics["loss/critic"]) == pytest.approx(total, rel=1e-4)


def test_huber_gradient_is_at_most_one():
    agent, sample = learner(hidden=(), optimizer="rmsprop"), batch()
    sample.reward.fill_(1e4)
    agent.update(sample)
    bias = list(agent.q.parameters())[-1]  # of a linear net: its gradient is the mean over rows per action
    assert bias.grad.abs().sum().item() == pytest.approx(1.0)


def test_the_target_network_is_copied_every_period_and_only_then():
    agent = learner(target_update_period=3)
    for update in range(1, 8):
        before = weights(agent.target_q)
        agent.update(batch(seed=update))
        if update % 3 == 0:
            assert torch.equal(weights(agent.target_q), weights(agent.q))
        else:
            assert torch.equal(weights(agent.target_q), before)


def test_tau_moves_the_target_network_at_every_update():
    agent = learner(tau=0.25, target_update_period=1)
    for update in range(3):
        before = weights(agent.target_q)
        agent.update(batch(seed=update))
        by_hand = before * 0.75 + weights(agent.q) * 0.25
        assert torch.allclose(weights(agent.target_q), by_hand, atol=1e-6)


def test_the_target_network_never_receives_gradients():
    agent = learner(kind=RainbowConfig)
    agent.update(batch())
    assert all(p.grad is None and not p.requires_grad for p in agent.target_q.parameters())


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "rmsprop_tf"])
@pytest.mark.parametrize("max_grad_norm", [0.0, 1.0])
@pytest.mark.parametrize("kind", [DQNConfig, C51Config, RainbowConfig])
@pytest.mark.parametrize("spoil", ["reward", "obs", "next_obs"])
def test_a_nan_loss_changes_no_weight_or_optimizer_state(optimizer, max_grad_norm, kind, spoil):
    agent = learner(kind=kind, optimizer=optimizer, max_grad_norm=max_grad_norm, normalize_observations=True)
    for update in range(3):
        agent.update(batch(seed=update))
    bad = batch(seed=5, index=True)
    (bad.reward if spoil == "reward" else getattr(bad, spoil)["obs"])[0] = math.nan
    bad.discount[:] = 0.9
    before = copy.deepcopy(agent.optimizer.state_dict()), weights(agent.q), weights(agent.target_q)
    outcome = agent.update(bad)
    assert outcome.metrics["count/skipped_updates"] == 1 and agent.consecutive_skips == 1
    assert torch.isfinite(outcome.priority).all()
    assert torch.equal(before[1], weights(agent.q)) and torch.equal(before[2], weights(agent.target_q))
    assert different_paths(before[0]["moments"], agent.optimizer.state_dict()["moments"]) == []
    sound = agent.update(batch(seed=6))
    assert sound.metrics["count/skipped_updates"] == 0 and agent.consecutive_skips == 0
    assert math.isfinite(sound.metrics["loss/critic"])


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "rmsprop_tf"])
def test_a_restored_learner_continues_bit_equal(optimizer):
    settings = {
        "optimizer": optimizer,
        "target_update_period": 4,
        "normalize_observations": True,
        "kind": RainbowConfig,
    }
    agent, other = learner(**settings), learner(seed=3, **settings)
    for update in range(3):
        agent.update(batch(seed=update))
    state = copy.deepcopy(agent.state_dict())
    assert not torch.equal(
        weights(agent.target_q), weights(agent.q)
    )  # a target copied on restore would be detected
    other.load_state_dict(state)
    for one in (agent, other):
        torch.manual_seed(1)
        for update in range(3):
            one.update(batch(seed=update + 10))
    assert different_paths(agent.state_dict(), other.state_dict()) == []


def test_sigma_receives_gradients_and_each_update_draws_new_noise(monkeypatch):
    agent, sampled = learner(noisy=0.5, dueling=True, double=True), []
    for net in (agent.q, agent.target_q):
        original = net.sample_noise
        monkeypatch.setattr(
            net,
            "sample_noise",
            lambda rows=None, original=original: sampled.append(original(rows)) or sampled[-1],
        )
    for _ in range(2):
        agent.update(batch())
    assert len(sampled) == 4  # online and target, twice
    firsts = [noise[0][0] for noise in sampled]
    assert not any(torch.equal(a, b) for i, a in enumerate(firsts) for b in firsts[:i])
    sigmas = [p for name, p in agent.q.named_parameters() if "sigma" in name]
    assert len(sigmas) == 8 and all(p.grad.abs().sum() > 0 for p in sigmas)


def test_the_normalizer_merges_batches_and_is_part_of_the_policy():
    agent = learner(normalize_observations=True)
    agent.update(batch())
    assert agent.policy.normalizer.count == 16
    alone = agent.cfg.policy(SPEC)
    alone.load_state_dict(agent.policy.state_dict())
    assert torch.equal(alone.normalizer.mean, agent.policy.normalizer.mean)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(C51_SMALL, id="c51"),
        pytest.param({"kind": RainbowConfig, "noisy": 0.5}, id="rainbow", marks=pytest.mark.long),
    ],
)
def test_compiled_losses_equal_eager_ones(kind):
    if not cpp_compiler()[1]:
        pytest.skip("no C++ compiler")
    plain, compiled = learner(**kind), learner(compile=True, **kind)
    for update in range(4):
        found = []
        for agent in (plain, compiled):
            torch.manual_seed(update)  # of the noise
            result = agent.update(batch(32, seed=update, index=True))
            found.append([result.metrics["loss/critic"].item(), *result.priority.tolist()])
        assert found[0] == pytest.approx(found[1], rel=1e-3, abs=1e-5)
    assert torch.allclose(weights(plain.q), weights(compiled.q), atol=1e-5)
