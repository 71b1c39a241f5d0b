import math
from types import SimpleNamespace

import pytest
import torch
from fake_remote import FakeRemote

from troop.algorithms.dqn import DQNConfig
from troop.core.algorithm import UpdateResult
from troop.core.batch import Transition
from troop.core.env import Discrete, EnvSpec, Field
from troop.core.errors import TrainingFault
from troop.replay.circular_buffer import CircularBuffer
from troop.roles.learner import Learner, LearnerConfig, PeerWeights
from troop.roles.weights import Weights

SPEC = EnvSpec("x", {"obs": Field((3,))}, Discrete(2), 1)


class FakeSource:
    """Returns numbered batches, and None at every third call; records the priorities sent to it."""

    def __init__(self, reward=1.0):
        self.calls, self.priorities, self.reward = 0, [], reward

    def sample(self, rows):
        self.calls += 1
        if self.calls % 3 == 0:
            return None
        torch.manual_seed(self.calls)
        obs = {"obs": torch.randn(rows, 3)}
        index = torch.arange(rows) + 1000 * self.calls
        discount = torch.full((rows,), 0.9)
        return Transition(
            obs, torch.zeros(rows, dtype=torch.int64), torch.full((rows,), self.reward), discount, obs,
            torch.ones(rows), index,
        )  # fmt: skip

    def reprioritize(self, index, priority):
        self.priorities.append((index, priority))


def make_learner(source, **config):
    torch.manual_seed(0)
    algorithm = DQNConfig(hidden=(8,), optimizer="adam").algorithm(SPEC)
    weights = Weights()
    return Learner(algorithm, source, weights, LearnerConfig(**({"batch_size": 4} | config))), weights


def test_step_makes_one_update_if_there_is_a_batch():
    learner, _ = make_learner(FakeSource())
    metrics = [learner.step() for _ in range(9)]
    assert [m is None for m in metrics] == [False, False, True] * 3
    assert all(m["count/updates"] == 1 and "loss/critic" in m for m in metrics if m)
    assert all(m["count/learn_s"] > 0 for m in metrics if m)
    assert learner.updates == learner.algorithm.updates == 6


def test_learner_publishes_the_initial_policy_immediately_and_then_every_few_updates():
    learner, weights = make_learner(FakeSource(), publish_every=4)
    versions = []
    for _ in range(18):
        learner.step()
        versions.append(weights.version)
    assert sorted(set(versions)) == [0, 4, 8, 12] and learner.updates == 12
    assert learner.gauges() == {"policy/version": 12}
    for name, x in learner.algorithm.policy.state_dict().items():
        assert torch.equal(x, weights.weights[name])


@pytest.mark.parametrize("every", [1, 3])
def test_priorities_are_sent_once_and_in_order(every):
    source = FakeSource()
    learner, _ = make_learner(source, priority_update_every=every)
    for _ in range(9):
        learner.step()
    assert [len(index) for index, _ in source.priorities] == [4 * every] * (6 // every)
    indices = torch.cat([index for index, _ in source.priorities])
    assert indices.tolist() == [1000 * b + i for b in (1, 2, 4, 5, 7, 8) for i in range(4)]


@pytest.mark.reliability("N2")
def test_ten_consecutive_nan_losses_stop_training():
    learner, _ = make_learner(FakeSource(math.nan))
    with pytest.raises(TrainingFault, match="10 consecutive updates"):
        for _ in range(30):
            learner.step()


@pytest.mark.reliability("R8")
def test_restored_learner_continues_and_publishes_after_a_restart():
    learner, _ = make_learner(FakeSource())
    for _ in range(6):
        learner.step()
    state = learner.state_dict()
    other, weights = make_learner(FakeSource(), batch_size=4)
    other.load_state_dict(state)
    assert other.updates == 4 and other.latest(3)[0] == 4 and other.latest(4) is None
    assert other.latest(9)[0] == 4  # the caller has a version from before the restore
    other.on_restart()  # publishes at the next step
    other.step()
    assert weights.version >= 4


class FakePartialLearner:
    """Records the weight of its peer module at each update."""

    def __init__(self):
        self.module, self.peer_module = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        self.consecutive_skips, self.peer_values = torch.zeros(()), []

    def update(self, batch):
        self.peer_values.append(float(self.peer_module.weight.detach()))
        return UpdateResult({"loss/critic": torch.zeros(())})

    def state_dict(self):
        return {"peer_values": list(self.peer_values)}

    def load_state_dict(self, state):
        self.peer_values = list(state["peer_values"])


def publish(weights, updates):
    module = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(module.weight, updates)
    weights.publish(updates, module.state_dict())


def make_critic_learner(counts_updates=True):
    policies, critics = Weights(), Weights("critic")
    peer = PeerWeights(policies, "critic", "policy", counts_updates)
    config = LearnerConfig(4, publish_every=2)
    return Learner(FakePartialLearner(), FakeSource(), critics, config, peer=peer), policies, critics


def test_partial_learner_publishes_but_does_not_sample_before_the_first_peer_weights():
    learner, policies, critics = make_critic_learner()
    assert [learner.step() for _ in range(5)] == [None] * 5
    assert learner.source.calls == 0 and critics.version == 0 and learner.algorithm.peer_values == []
    publish(policies, 0)
    assert learner.step()["count/updates"] == 1


def test_partial_learner_updates_with_the_newest_peer_weights_and_reports_the_lag():
    learner, policies, _ = make_critic_learner(counts_updates=False)
    metrics = []
    for version in (0, 5, 10, 30):
        publish(policies, version)
        metrics += [learner.step(), learner.step(), learner.step()]  # every third has no batch
    assert learner.algorithm.peer_values == [0, 0, 5, 5, 10, 10, 30, 30]
    metrics = [m for m in metrics if m is not None]
    assert all(m["count/critic_updates"] == 1 and "count/updates" not in m for m in metrics)
    assert [m.get("critic/policy_lag") for m in metrics] == [None, None, 5, None, 5, None, 20, None]
    assert learner.gauges() == {"critic/version": 8, "critic/policy_lag_max": 20}
    assert learner.module_name == "critic"


def test_partial_learner_restores_the_version_of_the_peer_weights():
    learner, policies, _ = make_critic_learner()
    publish(policies, 7)
    learner.step()
    other, _, _ = make_critic_learner()
    other.load_state_dict(learner.state_dict())
    assert other.state_dict()["counts"]["peer_version"] == 7 and other.updates == 1
    assert other.step()["count/updates"] == 1  # the algorithm's state includes its peer module


class RemoteSource(FakeSource):
    """A source on another host."""

    def __init__(self):
        super().__init__()
        self.sample = FakeRemote(super().sample)


@pytest.mark.parametrize("prefetch", [1, 3])
def test_remote_batches_are_prefetched_and_a_new_request_follows_each_reply(prefetch):
    source = RemoteSource()
    learner, _ = make_learner(source, prefetch=prefetch)
    for _ in range(3):
        assert learner.step() is None and source.sample.requests == [(4,)] * prefetch
    steps = []
    for replies in range(1, 7):
        source.sample.deliver()
        steps.append(learner.step() is not None)
        assert len(source.sample.requests) == prefetch + replies  # also after a None reply
    assert steps == [True, True, False] * 2 and learner.updates == 4
    indices = torch.cat([index for index, _ in source.priorities])
    assert indices.tolist() == [1000 * b + i for b in (1, 2, 4, 5) for i in range(4)]


def test_a_circular_buffer_asks_a_remote_source_ahead_and_never_waits():
    method = FakeRemote()
    buffer = CircularBuffer(SimpleNamespace(sample=method), 4, 2, 0, prefetch=3)
    assert buffer.sample(8) is None and method.requests == [(8,)] * 3
    method.deliver("first")
    assert [buffer.sample(8) for _ in range(3)] == ["first", "first", None]
    assert method.requests == [(8,)] * 4
