import math

import pytest
import torch

from troop.nets.noisy import NoisyLinear, NoisyMLP, factorised_noise, scale_noise


def layer(seed=0, sigma0=0.5):
    torch.manual_seed(seed)
    return NoisyLinear(16, 5, sigma0)


def explicit_noise(net, x, enters, leaves):
    """Reference: one row at a time with the full noise matrix."""
    answers = []
    for row in range(len(x)):
        matrix = torch.tensor([[o * i for i in enters[row].tolist()] for o in leaves[row].tolist()])
        weight = net.mu_weight + net.sigma_weight * matrix
        answers.append(weight @ x[row] + net.mu_bias + net.sigma_bias * leaves[row])
    return torch.stack(answers)


def test_per_row_noise_equals_explicit_noisy_weights():
    net, x = layer(), torch.randn(7, 16)
    enters, leaves = net.sample_noise(7)
    assert enters.shape == (7, 16) and leaves.shape == (7, 5)
    assert torch.allclose(net(x, (enters, leaves)), explicit_noise(net, x, enters, leaves), atol=1e-5)


def test_shared_noise_equals_explicit_noisy_weights():
    net, x = layer(), torch.randn(7, 16)
    enters, leaves = net.sample_noise()
    assert enters.shape == (16,) and leaves.shape == (5,)
    by_hand = explicit_noise(net, x, enters.expand(7, 16), leaves.expand(7, 5))
    assert torch.allclose(net(x, (enters, leaves)), by_hand, atol=1e-5)


def test_the_noise_of_the_weights_has_rank_one():
    net, eye = layer(), torch.eye(16)
    with torch.no_grad():
        net.sigma_bias.zero_()
        effect = (net(eye, net.sample_noise()) - net(eye)) / net.sigma_weight[
            0, 0
        ]  # sigma starts as a constant
    assert int(torch.linalg.matrix_rank(effect, rtol=1e-4)) == 1


def test_noise_is_the_signed_root_of_a_gaussian():
    torch.manual_seed(0)
    e = torch.randn(1000)
    torch.manual_seed(0)
    found = factorised_noise(1000, e)
    by_hand = [math.copysign(math.sqrt(abs(x)), x) for x in e.tolist()]
    assert found.tolist() == pytest.approx(by_hand, abs=1e-6)
    many = factorised_noise(200_000, e)
    assert many.mean().abs() < 0.01
    assert many.square().mean().item() == pytest.approx(math.sqrt(2 / math.pi), rel=0.01)  # E|e|


def test_initialisation_is_the_papers():
    net = NoisyLinear(100, 300, sigma0=0.5)
    assert (net.sigma_weight == 0.05).all() and (net.sigma_bias == 0.05).all()
    for mu in (net.mu_weight, net.mu_bias):
        assert mu.abs().max() <= 0.1
        assert mu.std().item() == pytest.approx(0.1 / math.sqrt(3), rel=0.1)


def test_without_noise_it_is_a_deterministic_linear_layer():
    net, x = layer(), torch.randn(7, 16)
    assert torch.equal(net(x), torch.nn.functional.linear(x, net.mu_weight, net.mu_bias))
    assert torch.equal(net(x), net(x))


@pytest.mark.parametrize("rows", [None, 7])
def test_new_noise_differs_and_sigma_receives_gradients(rows):
    net, x = NoisyMLP(16, (8,), 3, 0.5), torch.randn(7, 16)
    first, second = net(x, net.sample_noise(rows)), net(x, net.sample_noise(rows))
    assert not torch.allclose(first, second)
    first.square().sum().backward()
    for one in net.layers:
        assert one.sigma_weight.grad.abs().sum() > 0 and one.sigma_bias.grad.abs().sum() > 0


def test_per_row_and_shared_noise_have_equal_gradients():
    net, x = layer(), torch.randn(7, 16)
    enters, leaves = net.sample_noise()
    pull = torch.randn(7, 5)
    found = []
    for noise in ((enters, leaves), (enters.expand(7, 16), leaves.expand(7, 5))):
        net.zero_grad()
        (net(x, noise) * pull).sum().backward()
        found.append([p.grad.clone() for p in net.parameters()])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*found, strict=True))


def test_scaled_noise_is_proportional_and_zero_disables_it():
    net, x = layer(), torch.randn(3, 16)
    noise = [net.sample_noise(3)]
    still, loud = net(x), net(x, noise[0])
    rate = torch.tensor([0.0, 0.5, 1.0])
    found = net(x, scale_noise(noise, rate)[0])
    assert torch.allclose(found, still + rate.unsqueeze(1) * (loud - still), atol=1e-5)
    assert torch.allclose(found[0], still[0], atol=1e-6)
