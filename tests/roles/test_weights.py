import copy

import torch

from troop.roles.weights import Weights


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
