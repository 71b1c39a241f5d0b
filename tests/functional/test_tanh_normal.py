import math

import pytest
import torch
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from troop.functional import tanh_normal


def density(action, mean, log_std):
    """Return pi(action) in one dimension: the Gaussian density at atanh(action) over tanh's derivative."""
    u = math.atanh(action)
    gauss = (
        math.exp(-0.5 * ((u - mean) / math.exp(log_std)) ** 2) / math.exp(log_std) / math.sqrt(2 * math.pi)
    )
    return gauss / (1 - action**2)


@pytest.mark.parametrize("mean, log_std", [(0.0, 0.0), (0.7, -0.5), (-1.0, 0.2), (0.0, -2.5)])
def test_density_integrates_to_one_and_matches_samples(mean, log_std):
    cells = 20_000
    middles = [-1 + (i + 0.5) * 2 / cells for i in range(cells)]
    masses = [density(a, mean, log_std) * 2 / cells for a in middles]
    assert sum(masses) == pytest.approx(1, abs=1e-3)
    u = torch.tensor(middles, dtype=torch.float64).atanh().unsqueeze(-1)
    noise = (u - mean) / math.exp(log_std)
    found = tanh_normal.log_prob(u, noise, torch.full_like(u, log_std)).exp() * 2 / cells
    assert torch.allclose(found, torch.tensor(masses, dtype=torch.float64), atol=1e-9)
    torch.manual_seed(0)
    sampled, _ = tanh_normal.sample(torch.full((40_000, 1), mean), torch.full((40_000, 1), log_std))
    for edge in (-0.5, 0.0, 0.6):
        below = sum(m for a, m in zip(middles, masses, strict=True) if a < edge)
        assert (sampled < edge).float().mean().item() == pytest.approx(below, abs=0.01)


def test_log_prob_equals_torchs_transformed_distribution():
    torch.manual_seed(0)
    mean, log_std = torch.randn(500, 3).double(), torch.randn(500, 3).double() * 0.5 - 1
    action, found = tanh_normal.sample(mean, log_std)
    theirs = TransformedDistribution(Independent(Normal(mean, log_std.exp()), 1), TanhTransform(cache_size=1))
    assert torch.allclose(found, theirs.log_prob(action), atol=1e-6)
    assert found.shape == (500,) and action.shape == (500, 3)


@pytest.mark.parametrize("far", [3.0, 12.0, 30.0, 200.0])
def test_log_prob_is_exact_for_large_inputs(far):
    """1 - tanh(u)^2 is 0 in float32 from 9 on; log(1 - tanh(u)^2) is log 4 - 2 |u| there."""
    u = torch.tensor([[far], [-far]], requires_grad=True)
    found = tanh_normal.log_prob(u, torch.zeros(2, 1), torch.zeros(2, 1))
    exact = -0.5 * math.log(2 * math.pi) - (2 * math.log(2) - 2 * far - 2 * math.log1p(math.exp(-2 * far)))
    assert found.tolist() == pytest.approx([exact] * 2, rel=1e-5)
    found.sum().backward()
    assert u.grad.flatten().tolist() == pytest.approx([2 * math.tanh(far), -2 * math.tanh(far)], rel=1e-5)


def test_gradients_reach_mean_and_log_std_through_the_sample():
    mean, log_std = torch.zeros(1000, 2, requires_grad=True), torch.full((1000, 2), -1.0, requires_grad=True)
    torch.manual_seed(0)
    action, log_prob = tanh_normal.sample(mean, log_std)
    action.sum().backward(retain_graph=True)
    value_and_grad = 1 - action.detach().square()
    assert torch.allclose(mean.grad, value_and_grad, atol=1e-6)
    assert torch.allclose(log_std.grad, value_and_grad * action.detach().atanh(), atol=1e-4)
    log_std.grad = None
    log_prob.mean().backward()
    assert log_std.grad.sum() < 0  # a larger std lowers log pi
