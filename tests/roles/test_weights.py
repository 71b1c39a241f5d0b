import copy
from types import SimpleNamespace

import pytest
import torch
from fake_remote import FakeRemote
from torch import nn

from troop.roles.weights import WeightReader, Weights, load_weights


def publish(weights, updates):
    module = nn.Linear(1, 1)
    nn.init.constant_(module.weight, updates)
    weights.publish(updates, module.state_dict())


def remote_reader():
    """A reader of weights on another host; a reply has the weights of the moment of its request."""
    weights, module = Weights(), nn.Linear(1, 1)
    latest = FakeRemote(weights.latest)
    return weights, latest, WeightReader(SimpleNamespace(latest=latest), module)


def test_versions_are_the_learners_updates_and_the_newest_weights_win():
    weights = Weights()
    assert weights.latest(-1) is None
    versions = []
    for updates in (0, 10, 20, 5, 15, 40):  # the learner was restored from a checkpoint after 20 updates
        weights.publish(updates, {"x": torch.tensor(float(updates))})
        versions.append(weights.latest(versions[-1] if versions else -1)[0])
        assert weights.latest(versions[-1]) is None
        assert float(weights.latest(-1)[1]["x"]) == updates
    assert versions == [0, 10, 20, 5, 15, 40]


def test_published_weights_are_a_copy():
    weights, live = Weights(), torch.zeros(3)
    weights.publish(1, {"x": live})
    live.fill_(9.0)
    assert weights.latest(-1)[1]["x"].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.reliability("R8")
def test_restored_weights_are_returned_to_readers_with_a_newer_version():
    weights, other = Weights(), Weights()
    weights.publish(10, {"x": torch.ones(1)})
    state = copy.deepcopy(weights.state_dict())
    weights.publish(20, {"x": torch.zeros(1)})
    other.load_state_dict(state)
    assert other.latest(20) == (10, {"x": torch.ones(1)})
    other.load_state_dict(Weights().state_dict())  # saved before the first publication
    assert other.latest(20) is None


def test_reader_loads_the_newest_weights_and_returns_its_lag():
    weights, module = Weights("critic"), nn.Linear(1, 1)
    reader = WeightReader(weights, module)
    assert reader.refresh() is None and reader.version == -1
    lags = []
    for updates in (0, 4, 8, 20, 24):
        publish(weights, updates)
        lags.append(reader.refresh())
        assert float(module.weight.detach()) == reader.version == updates
        assert reader.refresh() is None  # nothing newer
    assert lags == [None, 4, 4, 12, 4] and reader.max_lag == 12


def test_remote_reader_keeps_one_request_in_flight_and_never_blocks():
    weights, latest, reader = remote_reader()
    for _ in range(3):
        assert reader.refresh() is None and latest.requests == [(-1,)]
    latest.deliver()  # a reply from before the first publication: None
    publish(weights, 0)
    assert reader.refresh() is None and reader.version == -1 and latest.requests == [(-1,), (-1,)]
    latest.deliver()
    reader.refresh()
    assert reader.version == 0 and latest.requests == [(-1,), (-1,), (0,)]


def test_idle_remote_reader_is_at_most_one_publication_old():
    weights, latest, reader = remote_reader()
    for updates in range(0, 100, 10):
        publish(weights, updates)
        for _ in range(2):  # each refresh receives the reply to the previous request
            if latest.undelivered:
                latest.deliver()
            reader.refresh()
        assert updates - reader.version <= 10


def test_load_weights_copies_all_tensors_and_names_mismatches():
    module, other = (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)) for _ in range(2))
    other(torch.randn(5, 3))  # counts a batch: not all tensors are floats
    before = module[0].weight
    load_weights(module, other.state_dict())
    assert module[0].weight is before and before.requires_grad
    assert all(torch.equal(x, other.state_dict()[name]) for name, x in module.state_dict().items())
    with pytest.raises(RuntimeError, match=r"size mismatch for 0\.weight"):
        load_weights(module, other.state_dict() | {"0.weight": torch.zeros(1, 3)})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        load_weights(module, other.state_dict() | {"more": torch.zeros(1)})


def test_delayed_weights_are_those_of_earlier_publications():
    weights = Weights("delayed policy", delay=2)
    assert weights.latest(-1) is None
    seen = []
    for updates in range(5):
        weights.publish(updates, {"w": torch.tensor([float(updates)])})
        version, tensors = weights.latest(-1)
        seen.append((version, float(tensors["w"])))
    assert seen == [(0, 0.0), (0, 0.0), (0, 0.0), (1, 1.0), (2, 2.0)]
