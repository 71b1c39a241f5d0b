import math

import pytest
import torch

from troop.nets.q_network import QNetwork

SHAPES = {"vector": (6,), "catch": (1, 10, 5), "frames": (4, 36, 36)}


def rows(shape, count=5, seed=0):
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("atoms", [0, 7])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("sigma0", [0.0, 0.5])
@pytest.mark.parametrize("hidden", [(), (8,), (8, 12)], ids=str)
def test_every_combination_returns_values_of_all_actions(shape, atoms, dueling, sigma0, hidden):
    torch.manual_seed(1)  # a seed without dead ReLUs
    net = QNetwork(shape, 3, hidden, atoms=atoms, dueling=dueling, sigma0=sigma0)
    x = rows(shape)
    answer = net(x, net.sample_noise())
    assert answer.shape == ((5, 3, atoms) if atoms else (5, 3))
    answer.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())
    assert torch.allclose(net(x), torch.cat((net(x[:2]), net(x[2:]))), atol=1e-5)
    assert (net.sample_noise() is None) == (sigma0 == 0)
    if sigma0:
        assert torch.isfinite(net(x, net.sample_noise(5))).all()


@pytest.mark.parametrize("atoms", [0, 7])
def test_dueling_is_value_plus_advantage_minus_its_mean(atoms):
    net = QNetwork((6,), 3, (8, 8), atoms=atoms, dueling=True)
    x = rows((6,))
    features = net.features(x)
    value, advantage = net.value(features), net.advantage(features)
    for row in range(5):
        for action in range(3):
            for atom in range(max(atoms, 1)):
                all_advantages = [advantage[row, a * max(atoms, 1) + atom].item() for a in range(3)]
                by_hand = value[row, atom].item() + all_advantages[action] - sum(all_advantages) / 3
                found = net(x)[row, action, atom] if atoms else net(x)[row, action]
                assert found.item() == pytest.approx(by_hand, abs=1e-5)


@pytest.mark.parametrize("sigma0", [0.0, 0.5])
def test_constant_advantages_leave_the_value(sigma0):
    net = QNetwork((6,), 3, (8,), dueling=True, sigma0=sigma0)
    with torch.no_grad():
        for parameter in net.advantage.parameters():
            parameter.zero_()
        *_, bias = net.advantage.parameters() if not sigma0 else [net.advantage.layers[-1].mu_bias]
        bias.fill_(4.0)
    x = rows((6,))
    assert torch.allclose(net(x), net.value(x).expand(5, 3), atol=1e-5)


@pytest.mark.parametrize("shape", [(6,), (1, 10, 5)], ids=str)
def test_dueling_scales_only_the_gradient_of_shared_layers(shape):
    torch.manual_seed(0)
    scaled = QNetwork(shape, 3, (8, 8), dueling=True)
    plain = QNetwork(shape, 3, (8, 8), dueling=True, rescale_torso=False)
    plain.load_state_dict(scaled.state_dict())
    for net in (scaled, plain):
        net(rows(shape)).square().sum().backward()
    for (name, p), q in zip(scaled.named_parameters(), plain.parameters(), strict=True):
        factor = 1 / math.sqrt(2) if name.startswith(("shared", "encoder")) else 1.0
        assert torch.allclose(p.grad, q.grad * factor, rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("kind", ["auto", "nature", "nips", "impala", "small", "mlp"])
def test_bytes_and_floats_give_the_same_values(kind):
    torch.manual_seed(0)
    net = QNetwork((4, 36, 36), 3, (8,), kind)
    x = torch.randint(0, 256, (5, 4, 36, 36), dtype=torch.uint8)
    assert torch.equal(net(x), net(x.float() / 255))
    assert torch.equal(net(x.expand(5, 4, 36, 36)), net(x.contiguous()))


def test_noise_is_an_argument_and_streams_have_separate_noise():
    net = QNetwork((6,), 3, (8,), dueling=True, sigma0=0.5)
    x, noise = rows((6,)), net.sample_noise()
    assert len(noise) == 4 and not torch.equal(noise[0][0], noise[2][0])
    assert torch.equal(net(x, noise), net(x, noise))
    assert not torch.allclose(net(x, noise), net(x, net.sample_noise()))
    assert not torch.allclose(net(x, noise), net(x))
