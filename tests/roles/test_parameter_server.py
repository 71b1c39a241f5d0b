"""Parameter servers and their optimizer, against manual calculations and plain torch optimizers."""

import copy
import math

import pytest
import torch
from torch import nn

from troop.algorithms.dqn import DQNConfig
from troop.core.batch import Transition
from troop.core.env import Discrete, EnvSpec, Field
from troop.core.peers import NoPeers
from troop.roles.parameter_server import AdaGradConfig, ParameterServer
from troop.roles.server_peers import TOLERANCE_DECAY, OutlierConfig, OutlierFilter, ServerPeers

SPEC = EnvSpec("x", {"obs": Field((3,))}, Discrete(2), 1)
NONE = OutlierConfig(max_deviations=0.0)


def batch(seed, rows=8, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    obs, after = ({"obs": torch.randn(rows, 3, generator=g)} for _ in range(2))
    action = torch.randint(2, (rows,), generator=g)
    reward = scale * torch.randn(rows, generator=g)
    return Transition(obs, action, reward, torch.full((rows,), 0.9), after)


def dqn(peers, **changes):
    torch.manual_seed(7)
    return DQNConfig(**({"hidden": (8,), "target_update_period": 13} | changes)).algorithm(SPEC, peers)


def policy_vector(learner):
    return torch.cat([p.detach().flatten() for p in learner.policy.parameters()])


def test_adagrad_equals_a_manual_calculation():
    server = ParameterServer(AdaGradConfig(lr=0.1, eps=1e-3, initial_accumulator_value=0.5))
    x, squares = [1.0, -2.0, 0.5], [0.5] * 3
    server.register(0, torch.tensor(x))
    g = torch.Generator().manual_seed(0)
    for step in range(50):
        gradient = torch.randn(3, generator=g)
        newest = server.push_pull(0, gradient, step)
        for i, g_i in enumerate(gradient.tolist()):
            squares[i] += g_i**2
            x[i] -= 0.1 * g_i / (math.sqrt(squares[i]) + 1e-3)
        assert newest.version == step + 1
        assert torch.allclose(newest.parameters, torch.tensor(x), atol=1e-5)


@pytest.mark.parametrize("max_staleness", [0, 3, None])
def test_stale_gradients_are_dropped(max_staleness):
    server = ParameterServer(AdaGradConfig(lr=0.1, max_staleness=max_staleness))
    server.register(0, torch.zeros(2))
    for step in range(10):
        server.push_pull(0, torch.ones(2), step)
    for delay in range(8):
        before = server.slices[0].version
        server.push_pull(0, torch.ones(2), before - delay)
        assert server.slices[0].version - before == (max_staleness is None or delay <= max_staleness)
    counts = server.counts
    assert counts["applied"] + counts["dropped_stale"] == 18
    assert counts["dropped_stale"] == {0: 7, 3: 4, None: 0}[max_staleness]


@pytest.mark.reliability("P4")
def test_gradient_of_a_newer_version_than_the_restored_server_is_dropped():
    server = ParameterServer(AdaGradConfig())
    server.register(0, torch.zeros(2))
    assert server.push_pull(0, torch.ones(2), 5).version == 0 and server.counts["dropped_stale"] == 1


def test_push_pull_returns_none_before_registration():
    assert ParameterServer(AdaGradConfig()).push_pull(0, torch.ones(2), 0) is None


def test_restored_server_continues_equal():
    server, other = ParameterServer(AdaGradConfig(lr=0.1)), ParameterServer(AdaGradConfig(lr=0.1))
    server.register(0, torch.zeros(2))
    server.register(1, torch.ones(3))
    server.push_pull(0, torch.ones(2), 0)
    other.load_state_dict(copy.deepcopy(server.state_dict()))
    for one in (server, other):
        one.push_pull(0, torch.ones(2), 1)
        one.push_pull(1, torch.ones(3), 0)
    assert other.gauges() == server.gauges()
    assert all(torch.equal(server.slices[i].parameters, other.slices[i].parameters) for i in range(2))


class Adagrad(torch.optim.Adagrad):
    """torch.optim.Adagrad, which does not support `found_inf` of the fused optimizers."""

    def step(self, closure=None):
        self.found_inf = None
        return super().step()


class AdagradPeers(NoPeers):
    """A single learner with torch's AdaGrad."""

    def optimizer(self, parameters, make):
        return Adagrad(parameters, lr=0.02, eps=1e-8)


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("changes", [{}, {"tau": 0.05}, {"double": True, "n_step": 3, "max_grad_norm": 1.0}])
def test_one_learner_with_servers_equals_dqn_with_adagrad(shards, changes):
    servers = [ParameterServer(AdaGradConfig(lr=0.02, eps=1e-8, max_staleness=0)) for _ in range(shards)]
    single, shared = dqn(AdagradPeers(), **changes), dqn(ServerPeers(servers, NONE), **changes)
    for step in range(1000):
        one, two = single.update(batch(step)), shared.update(batch(step))
        if step % 100 == 0:
            assert float(one.metrics["loss/critic"]) == pytest.approx(
                float(two.metrics["loss/critic"]), abs=1e-5
            )
    assert torch.allclose(policy_vector(single), policy_vector(shared), atol=1e-5)
    assert torch.allclose(
        *(nn.utils.parameters_to_vector(x.target_q.parameters()) for x in (single, shared)), atol=1e-5
    )
    assert all(
        server.counts == {"applied": 1000, "dropped_stale": 0, "dropped_outlier": 0} for server in servers
    )


def test_number_of_servers_does_not_change_the_result():
    results = []
    for shards in (1, 4):
        servers = [ParameterServer(AdaGradConfig(lr=0.02)) for _ in range(shards)]
        learners = [dqn(ServerPeers(servers, NONE)) for _ in range(3)]
        for step in range(200):
            learners[step % 3].update(batch(step))
        results.append([policy_vector(learner) for learner in learners])
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_all_target_networks_are_updated_at_the_same_version():
    server = ParameterServer(AdaGradConfig(lr=0.02))
    learners = [dqn(ServerPeers([server], NONE)) for _ in range(3)]
    target_updates = {i: [] for i in range(3)}
    for step in range(200):
        i = step % 3
        before = nn.utils.parameters_to_vector(learners[i].target_q.parameters()).clone()
        learners[i].update(batch(step))
        after = nn.utils.parameters_to_vector(learners[i].target_q.parameters())
        if not torch.equal(before, after):
            target_updates[i].append(server.slices[0].version)
    for versions in target_updates.values():
        periodic = [version for version in versions if version > 3]  # others are copies at registration
        assert [version // 13 for version in periodic] == list(range(1, 16))
        assert all(version % 13 < 3 for version in periodic)


def test_learner_that_registers_later_loads_the_parameters_and_sends_no_gradient_of_its_own():
    server = ParameterServer(AdaGradConfig(lr=0.02))
    first, late = dqn(ServerPeers([server], NONE)), dqn(ServerPeers([server], NONE))
    with torch.no_grad():
        late.optimizer.flat.add_(1.0)
    for step in range(20):
        first.update(batch(step))
    late.update(batch(99))
    assert server.counts["applied"] == 20 and torch.equal(policy_vector(first), policy_vector(late))
    assert torch.equal(nn.utils.parameters_to_vector(late.target_q.parameters()), policy_vector(late))


def test_restored_learner_loads_newer_parameters_and_empty_server_loads_the_learners():
    server = ParameterServer(AdaGradConfig(lr=0.02, max_staleness=3))
    learner = dqn(ServerPeers([server], NONE))
    for step in range(5):
        learner.update(batch(step))
    state = copy.deepcopy(learner.state_dict())
    for step in range(10):
        learner.update(batch(step))
    restored = dqn(ServerPeers([server], NONE))
    restored.load_state_dict(state)
    restored.update(batch(0))
    assert server.counts == {"applied": 15, "dropped_stale": 1, "dropped_outlier": 0}
    assert torch.equal(policy_vector(restored), policy_vector(learner))
    restored.update(batch(0))
    assert server.counts["applied"] == 16
    server.slices.clear()  # restarted without a checkpoint
    last = policy_vector(restored)
    restored.update(batch(1))
    assert torch.equal(server.slices[0].parameters, last) and server.slices[0].version == 0
    restored.update(batch(2))
    assert server.slices[0].version == 1


def test_losses_far_above_the_running_mean_are_outliers():
    config = OutlierConfig(max_deviations=4.0, decay=0.99, min_losses=100)
    assert not OutlierFilter(config).is_outlier(50.0)  # fewer than min_losses
    outliers = OutlierFilter(config)
    losses = (1 + 0.1 * torch.randn(400, generator=torch.Generator().manual_seed(0))).tolist()
    assert sum(outliers.is_outlier(x) for x in losses) <= 2
    _, mean, variance, _ = outliers.state.tolist()
    assert mean == pytest.approx(1.0, abs=0.05) and math.sqrt(variance) == pytest.approx(0.1, rel=0.3)
    before = outliers.state.clone()
    assert outliers.is_outlier(2.0) and outliers.is_outlier(100.0) and not outliers.is_outlier(1.3)
    outliers.state = before
    raised = [outliers.is_outlier(3.0) for _ in range(400)]  # the loss stays higher
    assert raised[0] and not any(raised[3:])


@pytest.mark.parametrize("constant, step", [(1.0, 2.0), (0.5, 1e4), (1e-8, 1.0), (0.0, 1.0), (1.0, 1e6)])
def test_lasting_rise_after_constant_losses_is_accepted_after_a_few_outliers(constant, step):
    outliers = OutlierFilter(OutlierConfig())
    assert not any(outliers.is_outlier(constant) for _ in range(5000))
    raised = [outliers.is_outlier(step) for _ in range(20_000)]
    limit = 0 if constant == 0 else math.ceil(math.log2(step / constant)) + 2
    assert sum(raised) <= limit and not any(raised[limit:])


def test_small_changes_of_almost_constant_losses_are_not_outliers():
    outliers = OutlierFilter(OutlierConfig())
    assert not any(outliers.is_outlier(1.0 + 1e-6 * i) for i in range(5000))


@pytest.mark.parametrize("period", [50, 200, 1000])
@pytest.mark.parametrize("ratio", [10.0, 100.0, 1000.0])
def test_rare_high_losses_of_a_sparse_reward_are_kept(period, ratio):
    generator = torch.Generator().manual_seed(0)
    noise = (1 + 0.3 * torch.randn(100 * period, generator=generator)).abs().tolist()
    outliers, dropped = OutlierFilter(OutlierConfig()), 0
    for i, x in enumerate(noise):
        rare = i % period == period - 1 and i >= 100
        outlier = outliers.is_outlier(ratio * x if rare else x)
        dropped += rare and outlier
    # Each dropped one doubles the bound, which decays between two of them.
    growth = math.log2(2 * TOLERANCE_DECAY**period)
    assert dropped <= math.log2(ratio) / growth + 3 <= 15


def test_single_huge_loss_is_an_outlier_and_does_not_open_the_filter():
    generator = torch.Generator().manual_seed(0)
    outliers = OutlierFilter(OutlierConfig())
    for i, x in enumerate((1 + 0.1 * torch.randn(20_000, generator=generator)).tolist()):
        assert outliers.is_outlier(1e6) if i % 10_000 == 9999 else not outliers.is_outlier(x) or x > 1.3
    assert outliers.is_outlier(5.0)


def test_outliers_do_not_depend_on_a_constant_added_to_all_losses():
    losses = 0.3 * torch.randn(5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    losses[500::100] += torch.arange(45.0)
    results = []
    for constant in (0.0, -2.0):  # losses of actors may be negative
        outliers = OutlierFilter(OutlierConfig())
        results.append([outliers.is_outlier(x + constant) for x in losses.tolist()])
    assert results[0] == results[1] and any(results[0])


def test_outliers_are_counted_by_the_server_and_not_applied():
    server = ParameterServer(AdaGradConfig(lr=0.001))
    learner = dqn(ServerPeers([server], OutlierConfig(min_losses=100)))
    for step in range(150):
        learner.update(batch(step))
    sent, before = sum(server.counts.values()), policy_vector(learner)
    learner.update(batch(1000, scale=100.0))
    assert sum(server.counts.values()) == sent + 1 and torch.equal(policy_vector(learner), before)
    assert server.counts["dropped_outlier"] >= 1
    assert server.gauges()["server/applied"] == server.counts["applied"]


@pytest.mark.reliability("N2")
def test_gradient_of_a_nan_loss_is_not_sent():
    server = ParameterServer(AdaGradConfig())
    learner = dqn(ServerPeers([server], OutlierConfig()))
    learner.update(batch(0))
    result = learner.update(batch(1, scale=math.nan))
    assert float(result.metrics["count/skipped_updates"]) == 1 and server.counts["applied"] == 1
    assert torch.isfinite(server.slices[0].parameters).all()


@pytest.mark.parametrize("delay", [0, 10, 50])
def test_adagrad_converges_on_a_quadratic_with_stale_gradients(delay):
    server = ParameterServer(AdaGradConfig(lr=0.5))
    iterates = [server.register(0, torch.full((4,), 5.0)).parameters.clone()]
    for _ in range(600):
        old = iterates[max(0, len(iterates) - 1 - delay)]
        iterates.append(
            server.push_pull(
                0, old * torch.tensor([1.0, 2.0, 5.0, 10.0]), len(iterates) - 1
            ).parameters.clone()
        )
    assert iterates[-1].abs().max() < 1.0
