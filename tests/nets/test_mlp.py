import math

import pytest
import torch
from torch.nn import functional as F

from troop.nets import mlp
from troop.nets.actors import DeterministicActor
from troop.nets.critics import Critics, QReduction
from troop.nets.mlp import MLP
from troop.nets.network_config import NetworkConfig

ACTIVATIONS = {"relu": F.relu, "elu": F.elu, "silu": F.silu}


def plain(x, layers, layer_norm, activation):
    """Reference: one network, one layer at a time, with torch.nn.functional."""
    *hidden, weight, bias = layers
    each = 4 if layer_norm else 2
    for first in range(0, len(hidden), each):
        x = F.linear(x, *hidden[first : first + 2])
        x = F.layer_norm(x, x.shape[-1:], *hidden[first + 2 : first + 4]) if layer_norm else x
        x = ACTIVATIONS[activation](x)
    return F.linear(x, weight, bias)


SIZES = {"tiny": ((3,), 4, 5), "deep": ((16, 8, 8), 7, 33), "wide": ((256, 128), 24, 600)}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("copies", [None, 1, 2, 3])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_outputs_and_gradients_equal_torchs_layers(size, layer_norm, copies, activation):
    hidden, inputs, rows = SIZES[size]
    torch.manual_seed(0)
    net = MLP(inputs, hidden, 6, layer_norm, copies, activation).double()
    for parameter in net.parameters():
        torch.nn.init.normal_(
            parameter, 0.5
        )  # including the LayerNorm parameters, which start as ones and zeros
    front = () if copies is None else (copies,)
    x = torch.randn(*front, rows, inputs, dtype=torch.float64, requires_grad=True)
    pull = torch.randn(*front, rows, 6, dtype=torch.float64)
    found = net(x)
    (found * pull).sum().backward()
    got = [x.grad, *(p.grad for p in net.parameters())]

    other = x.detach().clone().requires_grad_()
    layers = [p.detach().clone().requires_grad_() for p in net.layers]
    if copies is None:
        answer = plain(other, layers, layer_norm, activation)
    else:
        each = [plain(other[c], [p[c] for p in layers], layer_norm, activation) for c in range(copies)]
        answer = torch.stack(each)
    (answer * pull).sum().backward()
    assert torch.allclose(found, answer, atol=1e-10)
    for ours, by_hand in zip(got, [other.grad, *(p.grad for p in layers)], strict=True):
        assert torch.allclose(ours, by_hand, atol=1e-9)


@pytest.mark.parametrize("layer_norm, activation", [(False, "relu"), (True, "relu"), (True, "silu")])
def test_a_frozen_network_passes_gradients_to_its_input_only(layer_norm, activation):
    net = Critics(5, NetworkConfig((8, 8), layer_norm, activation), 3, count=2).requires_grad_(False)
    action = torch.randn(4, 2, requires_grad=True)
    net(torch.randn(4, 3), action).sum().backward()
    assert action.grad.abs().sum() > 0
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("frozen", range(6))
@pytest.mark.parametrize("copies", [None, 2])
def test_freezing_one_parameter_does_not_change_other_gradients(frozen, copies):
    torch.manual_seed(0)
    net = MLP(3, (4,), 2, layer_norm=True, copies=copies)
    x = torch.randn(*(() if copies is None else (copies,)), 5, 3)
    net(x).square().sum().backward()
    whole = [p.grad.clone() for p in net.parameters()]
    net.layers[frozen].requires_grad_(False)
    net.zero_grad(set_to_none=True)
    net(x).square().sum().backward()
    for i, (part, before) in enumerate(zip(net.layers, whole, strict=True)):
        assert part.grad is None if i == frozen else torch.allclose(part.grad, before)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_large_ensembles_run_one_network_at_a_time_with_equal_results(layer_norm, monkeypatch):
    torch.manual_seed(0)
    net = MLP(3, (8, 4), 2, layer_norm, copies=2).double()
    x = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    batched = net(x), torch.autograd.grad(net(x).square().sum(), [x, *net.layers])
    monkeypatch.setattr(mlp, "BATCHED_PRODUCT_LIMIT", 1)
    assert mlp._large_ensemble(x, tuple(net.layers))
    separate = net(x), torch.autograd.grad(net(x).square().sum(), [x, *net.layers])
    assert torch.allclose(batched[0], separate[0])
    for one, other in zip(batched[1], separate[1], strict=True):
        assert torch.allclose(one, other)


@pytest.mark.parametrize("copies", [None, 2])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_large_batches_run_in_blocks_of_rows_with_equal_results(layer_norm, copies, monkeypatch):
    torch.manual_seed(0)
    net = MLP(3, (8, 4), 2, layer_norm, copies=copies).double()
    ensemble = () if copies is None else (copies,)
    x = torch.randn(*ensemble, 23, 3, dtype=torch.float64, requires_grad=True)
    assert not mlp._block_rows(x)
    whole = net(x), torch.autograd.grad(net(x).square().sum(), [x, *net.layers])
    monkeypatch.setattr(mlp, "BLOCK_ROWS", 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert mlp._block_rows(x) == 4
    blocks = net(x), torch.autograd.grad(net(x).square().sum(), [x, *net.layers])
    assert torch.allclose(whole[0], blocks[0])
    for one, other in zip(whole[1], blocks[1], strict=True):
        assert torch.allclose(one, other)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_graph_that_a_compiler_traces_computes_the_same(layer_norm, monkeypatch):
    torch.manual_seed(0)
    net, x = MLP(3, (8, 4), 2, layer_norm, copies=2), torch.randn(2, 5, 3)
    eager = net(x)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.allclose(net(x), eager, atol=1e-6)


def test_initialisation_is_torchs_default():
    torch.manual_seed(0)
    for parameter in MLP(100, (400,), 50).layers[:2]:
        assert parameter.abs().max() <= 1 / math.sqrt(100)
        assert parameter.std().item() == pytest.approx(1 / math.sqrt(300), rel=0.1)


def test_actor_output_layer_starts_small_without_bias():
    torch.manual_seed(0)
    weight, bias = list(DeterministicActor(4, NetworkConfig((256,)), 64, output_std=0.01).parameters())[-2:]
    assert weight.std().item() == pytest.approx(0.01, rel=0.05)
    assert not bias.any()


def test_actions_are_bounded_by_tanh():
    action = DeterministicActor(3, NetworkConfig((8,)), 2, output_std=100.0)(torch.randn(64, 3) * 10)
    assert action.abs().max() <= 1 and action.abs().max() > 0.99


def test_critics_are_independent_functions_of_observation_and_action():
    torch.manual_seed(0)
    critics, obs, action = Critics(5, NetworkConfig((8,)), 7, count=3), torch.randn(4, 3), torch.randn(4, 2)
    found = critics(obs, action)
    assert found.shape == (3, 4, 7) and not torch.equal(found[0], found[1])
    assert not torch.equal(found, critics(obs, action + 1)) and not torch.equal(
        found, critics(obs + 1, action)
    )
    for count in range(3):  # the gradient of one critic touches that critic's weights only
        critics.zero_grad()
        critics(obs, action)[count].sum().backward()
        for parameter in critics.parameters():
            assert [bool(parameter.grad[c].any()) for c in range(3)] == [c == count for c in range(3)]


def test_q_reduction_is_float32_under_autocast():
    outputs, atoms = torch.randn(2, 64, 101), torch.linspace(-250, 250, 101)
    exact = (outputs.double().softmax(-1) @ atoms.double()).amin(0)
    with torch.autocast("cpu", torch.bfloat16):
        found = QReduction("min", atoms)(outputs.bfloat16())
    rounded = (outputs.bfloat16().double().softmax(-1) @ atoms.double()).amin(0)
    assert found.dtype == torch.float32 and torch.allclose(found.double(), rounded, atol=1e-2)
    assert not torch.allclose(found.double(), exact, atol=1e-2)  # the logits themselves were bf16
