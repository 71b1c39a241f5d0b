import math

import pytest
import torch

from troop.algorithms.dqn import DQNConfig
from troop.core.algorithm import UpdateResult
from troop.core.batch import Transition
from troop.core.env import Discrete, EnvSpec, Field
from troop.core.errors import TrainingFault
from troop.roles.learner import Learner, LearnerConfig, PeerWeights
from troop.roles.weights import Weights

SPEC = EnvSpec("x", {"obs": Field((3,))}, Discrete(2), 1)


class Source:
    """Gives numbered batches, now and then none; remembers the priorities told."""

    def __init__(self, reward=1.0):
        self.given, self.told, self.reward = 0, [], reward

    def sample(self, rows):
        self.given += 1
        if self.given % 3 == 0:
            return None
        torch.manual_seed(self.given)
        obs = {"obs": torch.randn(rows, 3)}
        index = torch.arange(rows) + 1000 * self.given
        discount = torch.full((rows,), 0.9)
        return Transition(
            obs, torch.zeros(rows, dtype=torch.int64), torch.full((rows,), self.reward), discount, obs,
            torch.ones(rows), index,
        )  # fmt: skip

    def reprioritize(self, index, priority):
        self.told.append((index, priority))


def learner(source, **pace):
    torch.manual_seed(0)
    algorithm = DQNConfig(hidden=(8,), optimizer="adam").algorithm(SPEC)
    weights = Weights()
    return Learner(algorithm, source, weights, LearnerConfig(**({"batch_size": 4} | pace))), weights


def test_a_step_is_an_update_if_there_is_a_batch():
    made, _ = learner(Source())
    said = [made.step() for _ in range(9)]
    assert [s is None for s in said] == [False, False, True] * 3
    assert all(s["count/updates"] == 1 and "loss/critic" in s for s in said if s)
    assert made.updates == made.algorithm.updates == 6


def test_the_first_policy_goes_out_at_once_and_then_every_so_many_updates():
    made, weights = learner(Source(), publish_every=4)
    versions = []
    for _ in range(18):
        made.step()
        versions.append(weights.version)
    assert sorted(set(versions)) == [0, 4, 8, 12] and made.updates == 12
    assert made.gauges() == {"policy/version": 12}
    for name, x in made.algorithm.policy.state_dict().items():
        assert torch.equal(x, weights.weights[name])


@pytest.mark.parametrize("every", [1, 3])
def test_priorities_go_back_in_order_and_once(every):
    source = Source()
    made, _ = learner(source, priority_update_every=every)
    for _ in range(9):
        made.step()
    assert [len(index) for index, _ in source.told] == [4 * every] * (6 // every)
    told = torch.cat([index for index, _ in source.told])
    assert told.tolist() == [1000 * b + i for b in (1, 2, 4, 5, 7, 8) for i in range(4)]


def test_ten_losses_in_a_row_that_are_no_number_end_it():
    made, _ = learner(Source(math.nan))
    with pytest.raises(TrainingFault, match="10 updates in a row"):
        for _ in range(30):
            made.step()


def test_it_goes_on_from_its_state():
    made, _ = learner(Source())
    for _ in range(6):
        made.step()
    state = made.state_dict()
    other, weights = learner(Source(), batch_size=4)
    other.load_state_dict(state)
    assert other.updates == 4 and other.latest(3)[0] == 4 and other.latest(4) is None
    other.on_restart()  # after a death its policy is told at once
    other.step()
    assert weights.version >= 4


class HalfOf:
    """A half that counts, and says what it followed at each update."""

    def __init__(self):
        self.module, self.peer_module = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        self.consecutive_skips, self.seen = torch.zeros(()), []

    def update(self, batch):
        self.seen.append(float(self.peer_module.weight.detach()))
        return UpdateResult({"loss/critic": torch.zeros(())})

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen = list(state["seen"])


def said(weights, updates):
    net = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(net.weight, updates)
    weights.publish(updates, net.state_dict())


def half_learner(counts=True):
    policies, critics = Weights(), Weights("critic")
    follow = PeerWeights(policies, "critic", "policy", counts)
    return (
        Learner(HalfOf(), Source(), critics, LearnerConfig(4, publish_every=2), follow=follow),
        policies,
        critics,
    )


def test_a_half_publishes_but_draws_nothing_until_it_has_the_others_first_net():
    made, policies, critics = half_learner()
    assert [made.step() for _ in range(5)] == [None] * 5
    assert made.source.given == 0 and critics.version == 0 and made.algorithm.seen == []
    said(policies, 0)
    assert made.step()["count/updates"] == 1


def test_a_half_learns_with_the_newest_net_of_the_other_and_tells_how_old_the_last_was():
    made, policies, _ = half_learner(counts=False)
    told = []
    for version in (0, 5, 10, 30):
        said(policies, version)
        told += [made.step(), made.step(), made.step()]  # every third finds no batch
    assert made.algorithm.seen == [0, 0, 5, 5, 10, 10, 30, 30]
    told = [step for step in told if step is not None]
    assert all(step["count/critic_updates"] == 1 and "count/updates" not in step for step in told)
    assert [step.get("critic/policy_lag") for step in told] == [None, None, 5, None, 5, None, 20, None]
    assert made.gauges() == {"critic/version": 8, "critic/policy_lag_max": 20}
    assert made.of == "critic"


def test_a_half_remembers_whom_it_followed():
    made, policies, _ = half_learner()
    said(policies, 7)
    made.step()
    other, _, _ = half_learner()
    other.load_state_dict(made.state_dict())
    assert other.other.version == 7 and other.updates == 1
    assert other.step()["count/updates"] == 1  # the net it had came with its state
