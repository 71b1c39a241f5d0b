import pytest
import torch
from torch import nn

from troop.nets.critics import Critics
from troop.nets.mlp import MLP, DeterministicActor


def kinds(module):
    return [type(layer).__name__ for layer in module]


def test_layers_alternate_and_end_linear():
    assert kinds(MLP(3, (5, 4), 2)) == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]
    assert kinds(MLP(3, (5,), 2, layer_norm=True)) == ["Linear", "LayerNorm", "ReLU", "Linear"]
    assert [layer.weight.shape for layer in MLP(3, (5, 4), 2) if isinstance(layer, nn.Linear)] == [
        (5, 3),
        (4, 5),
        (2, 4),
    ]


def test_the_actors_last_layer_starts_small_and_unbiased():
    torch.manual_seed(0)
    head = DeterministicActor(4, (256,), 64, head_std=0.01).net[-1]
    assert head.weight.std().item() == pytest.approx(0.01, rel=0.05)
    assert not head.bias.any()


def test_actions_are_bounded_by_tanh():
    actor = DeterministicActor(3, (8,), 2, head_std=100.0)
    action = actor(torch.randn(64, 3) * 10)
    assert action.abs().max() <= 1 and action.abs().max() > 0.99


def test_critics_are_independent_nets_over_observation_and_action():
    torch.manual_seed(0)
    critics = Critics(5, (8,), 7, count=3)
    obs, action = torch.randn(4, 3), torch.randn(4, 2)
    found = critics(obs, action)
    assert found.shape == (3, 4, 7)
    for net, answer in zip(critics.nets, found, strict=True):
        assert torch.equal(net(torch.cat((obs, action), -1)), answer)
    assert not torch.equal(found[0], found[1])
    own = {id(p) for p in critics.nets[0].parameters()} & {id(p) for p in critics.nets[1].parameters()}
    assert not own
