import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from troop.core.remote import RemoteCallable
from troop.roles.weights import Subscription, Weights, load_weights


def test_versions_only_grow_and_the_newest_wins():
    weights = Weights()
    assert weights.latest(-1) is None
    seen = []
    for updates in (0, 10, 20, 5, 15, 40):  # in between the learner went back to a checkpoint
        weights.publish(updates, {"x": torch.tensor(float(updates))})
        seen.append(weights.latest(seen[-1] if seen else -1)[0])
        assert weights.latest(seen[-1]) is None
        assert float(weights.latest(-1)[1]["x"]) == updates
    assert seen == [0, 10, 20, 21, 22, 40]


def test_what_was_published_does_not_change_with_the_learner():
    weights, live = Weights(), torch.zeros(3)
    weights.publish(1, {"x": live})
    live.fill_(9.0)
    assert weights.latest(-1)[1]["x"].tolist() == [0.0, 0.0, 0.0]


def test_those_who_know_more_than_a_restored_one_are_given_what_it_has():
    weights, other = Weights(), Weights()
    weights.publish(10, {"x": torch.ones(1)})
    state = copy.deepcopy(weights.state_dict())
    weights.publish(20, {"x": torch.zeros(1)})
    other.load_state_dict(state)
    assert other.latest(20) == (10, {"x": torch.ones(1)})
    other.load_state_dict(Weights().state_dict())  # saved before anything was published
    assert other.latest(20) is None


class Post(RemoteCallable):
    """`latest` of Weights elsewhere: an answer is of the moment of the question, and comes when it is let."""

    def __init__(self, weights):
        self.weights, self.asked = weights, []

    def call_async(self, after):
        answer = self.weights.latest(after)
        reply = SimpleNamespace(there=False, result=lambda: answer)
        reply.ready = lambda: reply.there
        self.asked.append(reply)
        return reply

    def __call__(self, *args):
        raise AssertionError("nobody may wait for weights")


def published(weights, updates):
    net = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(net.weight, updates)
    weights.publish(updates, net.state_dict())


def test_a_subscription_takes_the_newest_and_says_how_far_behind_it_was():
    weights, net = Weights("critic"), torch.nn.Linear(1, 1)
    subscription = Subscription(weights, net)
    assert subscription.refresh() is None and subscription.version == -1
    lags = []
    for updates in (0, 4, 8, 20, 24):
        published(weights, updates)
        lags.append(subscription.refresh())
        assert float(net.weight.detach()) == subscription.version == updates
        assert subscription.refresh() is None  # nothing newer
    assert lags == [None, 4, 4, 12, 4] and subscription.longest == 12


def test_elsewhere_it_is_asked_ahead_one_question_at_a_time_and_never_waited_for():
    weights, net = Weights(), torch.nn.Linear(1, 1)
    post = Post(weights)
    subscription = Subscription(SimpleNamespace(latest=post), net)
    for _ in range(3):
        assert subscription.refresh() is None and len(post.asked) == 1
    post.asked[-1].there = True  # an answer of before the first publication: nothing
    published(weights, 0)
    assert subscription.refresh() is None and subscription.version == -1 and len(post.asked) == 2
    post.asked[-1].there = True
    subscription.refresh()
    assert subscription.version == 0 and len(post.asked) == 3


def test_an_idle_reader_is_at_most_one_publication_old():
    weights, net = Weights(), torch.nn.Linear(1, 1)
    post = Post(weights)
    subscription = Subscription(SimpleNamespace(latest=post), net)
    for updates in range(0, 100, 10):
        published(weights, updates)
        for _ in range(2):  # looks between two publications; each finds the answer to the last question
            if post.asked:
                post.asked[-1].there = True
            subscription.refresh()
        assert updates - subscription.version <= 10


def test_weights_are_taken_whole_and_those_that_do_not_fit_are_named():
    net, other = (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)) for _ in range(2))
    other(torch.randn(5, 3))  # counts a batch: not all that travels is a float
    before = net[0].weight
    load_weights(net, other.state_dict())
    assert net[0].weight is before and before.requires_grad
    assert all(torch.equal(x, other.state_dict()[name]) for name, x in net.state_dict().items())
    with pytest.raises(RuntimeError, match=r"size mismatch for 0\.weight"):
        load_weights(net, other.state_dict() | {"0.weight": torch.zeros(1, 3)})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        load_weights(net, other.state_dict() | {"more": torch.zeros(1)})
