import math

import pytest
import torch

from troop.algorithms.optim.flat import flat_parameters, flatten_parameters
from troop.nets.actors import DeterministicActor, GaussianActor
from troop.nets.critics import Critics
from troop.nets.network_config import NetworkConfig
from troop.nets.simba import Simba


def plain(x, parts, gains):
    """Reference: one network, one row at a time."""
    kernels, scales = parts[::2], [p * g for p, g in zip(parts[1:-1:2], gains, strict=True)]

    def sphere(v):
        return v / v.square().sum().sqrt()

    rows = []
    for row in x:
        v = sphere(torch.cat((row, torch.tensor([3.0], dtype=row.dtype))))
        v = sphere((kernels[0] @ v) * scales[0])
        for block in range((len(kernels) - 3) // 2):
            inner = torch.relu((kernels[1 + 2 * block] @ v) * scales[1 + 2 * block]) + 1e-8
            share, u = scales[2 + 2 * block], sphere(kernels[2 + 2 * block] @ inner)
            v = sphere(v + share * (u - v))
        v = (kernels[-2] @ v) * scales[-1]
        rows.append(kernels[-1] @ v + parts[-1])
    return torch.stack(rows)


@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize("copies", [None, 2])
def test_outputs_and_gradients_equal_a_row_by_row_implementation(blocks, copies):
    torch.manual_seed(0)
    net = Simba(5, 6, blocks, 3, copies).double()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, 0.4)
    front = () if copies is None else (copies,)
    x = torch.randn(*front, 7, 5, dtype=torch.float64, requires_grad=True)
    pull = torch.randn(*front, 7, 3, dtype=torch.float64)
    found = net(x)
    got = torch.autograd.grad((found * pull).sum(), [x, *net.layers])
    if copies is None:
        answer = plain(x, list(net.layers), net.gains)
    else:
        answer = torch.stack(
            [plain(x[c], [p[c] for p in tuple(net.layers)], net.gains) for c in range(copies)]
        )
    assert torch.allclose(found, answer, atol=1e-10)
    for ours, by_hand in zip(got, torch.autograd.grad((answer * pull).sum(), [x, *net.layers]), strict=True):
        assert torch.allclose(ours, by_hand, atol=1e-9)


def test_autocast_computes_in_bf16():
    net, x = Simba(5, 16, 2, 3, 2), torch.randn(2, 9, 5)
    with torch.autocast("cpu", torch.bfloat16):
        low = net(x)
    assert torch.allclose(low, net(x), atol=0.05) and not torch.allclose(low, net(x), atol=1e-5)


def row_lengths(net):
    return [kernel.norm(dim=-1) for kernel in tuple(net.layers)[::2]]


@pytest.mark.parametrize("width, outputs", [(8, 21), (32, 3)])
def test_kernel_rows_start_at_unit_norm_and_are_projected_back(width, outputs):
    net = Simba(5, width, 2, outputs, 2)
    for lengths in row_lengths(net):
        assert torch.allclose(lengths, torch.ones_like(lengths), atol=1e-5)
    scales = [p.clone() for p in tuple(net.layers)[1::2]]
    with torch.no_grad():
        for parameter in tuple(net.layers):
            parameter.mul_(3).add_(0.1)
    directions = [kernel / kernel.norm(dim=-1, keepdim=True) for kernel in tuple(net.layers)[::2]]
    net.project()
    for kernel, direction in zip(tuple(net.layers)[::2], directions, strict=True):
        assert torch.allclose(kernel, direction, atol=1e-6)  # directions are unchanged
    for scale, before in zip(tuple(net.layers)[1::2], scales, strict=True):
        assert torch.allclose(scale, before * 3 + 0.1)  # scales are not projected


def test_the_port_variant_leaves_kernels_unchanged():
    net = Simba(5, 8, 1, 3, port=True)
    with torch.no_grad():
        net.layers[0].mul_(3)
    before = net.layers[0].clone()
    net.project()
    assert torch.equal(net.layers[0], before)


@pytest.mark.parametrize("port", [False, True])
def test_scales_start_at_their_initial_value(port):
    """Effective initial scale: `init`; in the port variant its square."""
    width, blocks = 32, 2
    net = Simba(5, width, blocks, 3, port=port)
    found = [(p * g).unique().item() for p, g in zip(tuple(net.layers)[1:-1:2], net.gains, strict=True)]
    wide, share = math.sqrt(2 / width), 1 / (blocks + 1)
    wanted = [wide, *[wide / 2, share] * blocks, 1.0]
    assert found == pytest.approx([w**2 if port else w for w in wanted], rel=1e-5)
    starts = [p.unique().item() for p in tuple(net.layers)[1:-1:2]]
    scale = [wide, *[wide / 2, 1 / math.sqrt(width)] * blocks, 1.0]
    both = zip(scale, wanted, strict=True)
    assert starts == pytest.approx([s * w if port else s for s, w in both], rel=1e-5)


def test_features_have_unit_norm_for_any_input():
    """The head receives unit vectors, so outputs are bounded; the constant input preserves the norm."""
    net = Simba(3, 16, 2, 4)
    with torch.no_grad():
        far = net(torch.randn(50, 3) * 1e4)
    assert far.abs().max() <= 1 + 1e-4  # unit rows times a unit vector, scales at 1
    direction = torch.tensor([[0.3, -0.2, 0.5]])
    assert not torch.allclose(net(direction), net(direction * 10), atol=1e-3)


def test_flat_parameters_and_copies_work():
    torch.manual_seed(0)
    critics = Critics(5, NetworkConfig((8, 8), kind="simbav2"), 3, count=2)
    obs, action = torch.randn(4, 3), torch.randn(4, 2)
    before = critics(obs, action)
    whole = flatten_parameters(critics)
    assert torch.equal(critics(obs, action), before)
    critics(obs, action).sum().backward()
    assert whole.grad.abs().sum() > 0
    with torch.no_grad():
        whole.add_(whole.grad, alpha=-0.1)
    critics.nets.project()
    assert torch.equal(flat_parameters(critics), whole.data)  # projected in place
    assert all(torch.allclose(x, torch.ones_like(x), atol=1e-5) for x in row_lengths(critics.nets))
    critics.requires_grad_(False)
    pulled = action.clone().requires_grad_()
    critics(obs, pulled).sum().backward()
    assert pulled.grad.abs().sum() > 0


def test_both_actors_are_bounded():
    shape = NetworkConfig((16,), kind="simbav2")
    x = torch.randn(64, 3) * 10
    assert DeterministicActor(3, shape, 2)(x).abs().max() <= 1
    mean, log_std = GaussianActor(3, shape, 2, -5.0, 2.0)(x)
    assert mean.shape == log_std.shape == (64, 2) and log_std.min() >= -5 and log_std.max() <= 2
