import math

import pytest
import torch

from troop.nets.noisy import NoisyLinear, NoisyMLP, factorised_noise, scale_noise


def layer(seed=0, sigma0=0.5):
    torch.manual_seed(seed)
    return NoisyLinear(16, 5, sigma0)


def written_out(made, x, enters, leaves):
    """One row at a time with the noise matrix written out."""
    answers = []
    for row in range(len(x)):
        matrix = torch.tensor([[o * i for i in enters[row].tolist()] for o in leaves[row].tolist()])
        weight = made.mu_weight + made.sigma_weight * matrix
        answers.append(weight @ x[row] + made.mu_bias + made.sigma_bias * leaves[row])
    return torch.stack(answers)


def test_each_row_feels_its_own_noise_as_if_written_out():
    made, x = layer(), torch.randn(7, 16)
    enters, leaves = made.sample_noise(7)
    assert enters.shape == (7, 16) and leaves.shape == (7, 5)
    assert torch.allclose(made(x, (enters, leaves)), written_out(made, x, enters, leaves), atol=1e-5)


def test_one_noise_for_all_rows_as_if_written_out():
    made, x = layer(), torch.randn(7, 16)
    enters, leaves = made.sample_noise()
    assert enters.shape == (16,) and leaves.shape == (5,)
    by_hand = written_out(made, x, enters.expand(7, 16), leaves.expand(7, 5))
    assert torch.allclose(made(x, (enters, leaves)), by_hand, atol=1e-5)


def test_the_noise_of_the_weights_has_rank_one():
    made, eye = layer(), torch.eye(16)
    with torch.no_grad():
        made.sigma_bias.zero_()
        effect = (made(eye, made.sample_noise()) - made(eye)) / made.sigma_weight[
            0, 0
        ]  # sigma is one number at first
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


def test_it_starts_as_the_paper_says():
    made = NoisyLinear(100, 300, sigma0=0.5)
    assert (made.sigma_weight == 0.05).all() and (made.sigma_bias == 0.05).all()
    for mu in (made.mu_weight, made.mu_bias):
        assert mu.abs().max() <= 0.1
        assert mu.std().item() == pytest.approx(0.1 / math.sqrt(3), rel=0.1)


def test_without_noise_it_is_a_linear_layer_and_says_the_same_twice():
    made, x = layer(), torch.randn(7, 16)
    assert torch.equal(made(x), torch.nn.functional.linear(x, made.mu_weight, made.mu_bias))
    assert torch.equal(made(x), made(x))


@pytest.mark.parametrize("rows", [None, 7])
def test_fresh_noise_differs_and_its_gradient_reaches_sigma(rows):
    made, x = NoisyMLP(16, (8,), 3, 0.5), torch.randn(7, 16)
    first, second = made(x, made.sample_noise(rows)), made(x, made.sample_noise(rows))
    assert not torch.allclose(first, second)
    first.square().sum().backward()
    for one in made.layers:
        assert one.sigma_weight.grad.abs().sum() > 0 and one.sigma_bias.grad.abs().sum() > 0


def test_gradients_of_both_forms_are_the_same():
    made, x = layer(), torch.randn(7, 16)
    enters, leaves = made.sample_noise()
    pull = torch.randn(7, 5)
    found = []
    for noise in ((enters, leaves), (enters.expand(7, 16), leaves.expand(7, 5))):
        made.zero_grad()
        (made(x, noise) * pull).sum().backward()
        found.append([p.grad.clone() for p in made.parameters()])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*found, strict=True))


def test_rows_with_rate_zero_feel_nothing_and_others_in_proportion():
    made, x = layer(), torch.randn(3, 16)
    noise = [made.sample_noise(3)]
    still, loud = made(x), made(x, noise[0])
    rate = torch.tensor([0.0, 0.5, 1.0])
    found = made(x, scale_noise(noise, rate)[0])
    assert torch.allclose(found, still + rate.unsqueeze(1) * (loud - still), atol=1e-5)
    assert torch.allclose(found[0], still[0], atol=1e-6)
