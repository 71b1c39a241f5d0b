"""Servers and the optimizer that steps at them, by hand and against slow code."""

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
from troop.roles.server_peers import OutlierConfig, OutlierFilter, ServerPeers

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
    return DQNConfig(**({"hidden": (8,), "target_period": 13} | changes)).algorithm(SPEC, peers)


def weights(learner):
    return torch.cat([p.detach().flatten() for p in learner.policy.parameters()])


def test_adagrad_by_hand():
    server = ParameterServer(AdaGradConfig(lr=0.1, eps=1e-3, initial_accumulator_value=0.5))
    x, squares = [1.0, -2.0, 0.5], [0.5] * 3
    server.register(0, torch.tensor(x))
    g = torch.Generator().manual_seed(0)
    for step in range(50):
        gradient = torch.randn(3, generator=g)
        got = server.push_pull(0, gradient, step)
        for i, each in enumerate(gradient.tolist()):
            squares[i] += each**2
            x[i] -= 0.1 * each / (math.sqrt(squares[i]) + 1e-3)
        assert got.version == step + 1
        assert torch.allclose(got.parameters, torch.tensor(x), atol=1e-5)


@pytest.mark.parametrize("most", [0, 3, None])
def test_gradients_of_parameters_too_old_are_dropped(most):
    server = ParameterServer(AdaGradConfig(lr=0.1, max_staleness=most))
    server.register(0, torch.zeros(2))
    for step in range(10):
        server.push_pull(0, torch.ones(2), step)
    for delay in range(8):
        before = server.slices[0].version
        server.push_pull(0, torch.ones(2), before - delay)
        assert server.slices[0].version - before == (most is None or delay <= most)
    counts = server.counts
    assert counts["applied"] + counts["dropped_stale"] == 18
    assert counts["dropped_stale"] == {0: 7, 3: 4, None: 0}[most]


def test_gradients_of_the_future_are_of_parameters_that_are_gone():
    server = ParameterServer(AdaGradConfig())
    server.register(0, torch.zeros(2))
    assert server.push_pull(0, torch.ones(2), 5).version == 0 and server.counts["dropped_stale"] == 1


def test_a_server_with_nothing_says_so():
    assert ParameterServer(AdaGradConfig()).push_pull(0, torch.ones(2), 0) is None


def test_state_round_trips():
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
    """Torch's, deaf to the flag that only its fused optimizers know."""

    def step(self, closure=None):
        self.found_inf = None
        return super().step()


class Plain(NoPeers):
    """A learner on its own that descends by torch's AdaGrad."""

    def optimizer(self, parameters, make):
        return Adagrad(parameters, lr=0.02, eps=1e-8)


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("changes", [{}, {"tau": 0.05}, {"double": True, "n_step": 3, "max_grad_norm": 1.0}])
def test_one_learner_at_its_servers_is_plain_dqn_with_adagrad(shards, changes):
    servers = [ParameterServer(AdaGradConfig(lr=0.02, eps=1e-8, max_staleness=0)) for _ in range(shards)]
    alone, shared = dqn(Plain(), **changes), dqn(ServerPeers(servers, NONE), **changes)
    for step in range(1000):
        one, two = alone.update(batch(step)), shared.update(batch(step))
        if step % 100 == 0:
            assert float(one.metrics["loss/critic"]) == pytest.approx(
                float(two.metrics["loss/critic"]), abs=1e-5
            )
    assert torch.allclose(weights(alone), weights(shared), atol=1e-5)
    assert torch.allclose(
        *(nn.utils.parameters_to_vector(x.target_q.parameters()) for x in (alone, shared)), atol=1e-5
    )
    assert all(
        server.counts == {"applied": 1000, "dropped_stale": 0, "dropped_outlier": 0} for server in servers
    )


def test_shards_change_nothing():
    ends = []
    for shards in (1, 4):
        servers = [ParameterServer(AdaGradConfig(lr=0.02)) for _ in range(shards)]
        learners = [dqn(ServerPeers(servers, NONE)) for _ in range(3)]
        for step in range(200):
            learners[step % 3].update(batch(step))
        ends.append([weights(learner) for learner in learners])
    assert all(torch.equal(one, two) for one, two in zip(*ends, strict=True))


def test_all_targets_turn_at_the_same_count_of_the_server():
    server = ParameterServer(AdaGradConfig(lr=0.02))
    learners = [dqn(ServerPeers([server], NONE)) for _ in range(3)]
    turned = {i: [] for i in range(3)}
    for step in range(200):
        which = step % 3
        before = nn.utils.parameters_to_vector(learners[which].target_q.parameters()).clone()
        learners[which].update(batch(step))
        after = nn.utils.parameters_to_vector(learners[which].target_q.parameters())
        if not torch.equal(before, after):
            turned[which].append(server.slices[0].version)
    for counts in turned.values():
        on_time = [count for count in counts if count > 3]  # entering, one takes over what is there
        assert [count // 13 for count in on_time] == list(range(1, 1 + len(on_time))) and len(on_time) == 15
        assert all(count % 13 < 3 for count in on_time)


def test_whoever_enters_later_takes_what_is_there_and_sends_nothing_of_its_own_start():
    server = ParameterServer(AdaGradConfig(lr=0.02))
    first, late = dqn(ServerPeers([server], NONE)), dqn(ServerPeers([server], NONE))
    with torch.no_grad():
        late.descent.whole.add_(1.0)
    for step in range(20):
        first.update(batch(step))
    late.update(batch(99))
    assert server.counts["applied"] == 20 and torch.equal(weights(first), weights(late))
    assert torch.equal(nn.utils.parameters_to_vector(late.target_q.parameters()), weights(late))


def test_a_learner_back_from_an_old_checkpoint_is_told_and_a_server_without_one_begins_with_a_learners():
    server = ParameterServer(AdaGradConfig(lr=0.02, max_staleness=3))
    made = dqn(ServerPeers([server], NONE))
    for step in range(5):
        made.update(batch(step))
    state = copy.deepcopy(made.state_dict())
    for step in range(10):
        made.update(batch(step))
    back = dqn(ServerPeers([server], NONE))
    back.load_state_dict(state)
    back.update(batch(0))
    assert server.counts == {"applied": 15, "dropped_stale": 1, "dropped_outlier": 0}
    assert torch.equal(weights(back), weights(made))
    back.update(batch(0))
    assert server.counts["applied"] == 16
    server.slices.clear()  # restarted, and nothing was saved
    last = weights(back)
    back.update(batch(1))
    assert torch.equal(server.slices[0].parameters, last) and server.slices[0].version == 0
    back.update(batch(2))
    assert server.slices[0].version == 1


def test_losses_far_from_the_ordinary_are_refused_by_hand():
    judge, g = (
        OutlierFilter(OutlierConfig(max_deviations=4.0, decay=0.99, min_losses=100)),
        torch.Generator().manual_seed(0),
    )
    ordinary = (1 + 0.1 * torch.randn(400, generator=g)).tolist()
    assert not judge.refuses(50.0)  # too early to judge
    judge = OutlierFilter(OutlierConfig(max_deviations=4.0, decay=0.99, min_losses=100))
    refused = [judge.refuses(x) for x in ordinary]
    assert sum(refused) <= 2
    _, mean, variance = judge.state.tolist()
    assert mean == pytest.approx(1.0, abs=0.05) and math.sqrt(variance) == pytest.approx(0.1, rel=0.3)
    assert judge.refuses(2.0) and judge.refuses(100.0) and not judge.refuses(1.3)
    call_async = [judge.refuses(3.0) for _ in range(400)]  # the level rises for good
    assert call_async[0] and not any(call_async[-100:])


def test_outliers_are_counted_at_the_server_and_not_applied():
    server = ParameterServer(AdaGradConfig(lr=0.001))
    made = dqn(ServerPeers([server], OutlierConfig(min_losses=100)))
    for step in range(150):
        made.update(batch(step))
    sent, before = sum(server.counts.values()), weights(made)
    made.update(batch(1000, scale=100.0))
    assert sum(server.counts.values()) == sent + 1 and torch.equal(weights(made), before)
    assert server.counts["dropped_outlier"] >= 1
    assert server.gauges()["server/applied"] == server.counts["applied"]


def test_a_loss_that_is_no_number_is_not_sent():
    server = ParameterServer(AdaGradConfig())
    made = dqn(ServerPeers([server], OutlierConfig()))
    made.update(batch(0))
    outcome = made.update(batch(1, scale=math.nan))
    assert float(outcome.metrics["count/skipped_updates"]) == 1 and server.counts["applied"] == 1
    assert torch.isfinite(server.slices[0].parameters).all()


@pytest.mark.parametrize("delay", [0, 10, 50])
def test_adagrad_stands_old_gradients_on_a_bowl(delay):
    server = ParameterServer(AdaGradConfig(lr=0.5))
    seen = [server.register(0, torch.full((4,), 5.0)).parameters.clone()]
    for _ in range(600):
        old = seen[max(0, len(seen) - 1 - delay)]
        seen.append(
            server.push_pull(0, old * torch.tensor([1.0, 2.0, 5.0, 10.0]), len(seen) - 1).parameters.clone()
        )
    assert seen[-1].abs().max() < 1.0
