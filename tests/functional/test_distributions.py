"""Action distributions against torch.distributions."""

import math

import pytest
import torch
from torch import distributions

from troop.functional.distributions import Categorical, DiagonalGaussian

torch.manual_seed(0)
LOGITS, OTHER = torch.randn(2, 7, 5)
MEANS = torch.randn(2, 7, 6)


def test_categorical_log_prob_entropy_and_kl_match_torch():
    ours, theirs = Categorical((5,)), distributions.Categorical(logits=LOGITS)
    action = torch.randint(5, (7,))
    assert torch.allclose(ours.log_prob(LOGITS, action), theirs.log_prob(action), atol=1e-6)
    assert torch.allclose(ours.entropy(LOGITS), theirs.entropy(), atol=1e-6)
    kl = distributions.kl_divergence(theirs, distributions.Categorical(logits=OTHER))
    assert torch.allclose(ours.kl(LOGITS, OTHER), kl, atol=1e-6)
    assert torch.equal(ours.mode(LOGITS), LOGITS.argmax(1))


def test_symmetric_kl_from_uniform_matches_torch_and_leaves_out_masked_actions():
    def slow(logits):
        policy, uniform = (
            distributions.Categorical(logits=logits),
            distributions.Categorical(logits=logits * 0),
        )
        one, two = (distributions.kl_divergence(*pair) for pair in ((policy, uniform), (uniform, policy)))
        return (one + two) / 2

    ours = Categorical((2, 3))
    expected = slow(LOGITS[:, :2]) + slow(LOGITS[:, 2:])
    assert torch.allclose(ours.symmetric_kl_from_uniform(LOGITS), expected, atol=1e-6)
    # 3/4 and 1/4: (log 1.5 * 3/4 + log 0.5 / 4 - log 1.5 / 2 - log 0.5 / 2) / 2 = log(3) / 8
    quarters = torch.tensor([[0.75, 0.25]]).log()
    assert float(Categorical((2,)).symmetric_kl_from_uniform(quarters)) == pytest.approx(math.log(3) / 8)
    assert not Categorical((5,)).symmetric_kl_from_uniform(torch.full((7, 5), 3.0)).any()
    mask = torch.tensor([True, False, True, True, False]).expand(7, 5)
    masked = Categorical((5,)).mask_logits(LOGITS, mask).requires_grad_()
    kl = Categorical((5,)).symmetric_kl_from_uniform(masked)
    assert torch.allclose(kl, slow(LOGITS[:, [0, 2, 3]]), atol=1e-6)
    kl.sum().backward()
    assert torch.isfinite(masked.grad).all() and not masked.grad[:, [1, 4]].any()


def test_multi_discrete_sums_over_its_parts():
    ours = Categorical((2, 3))
    parts = [distributions.Categorical(logits=LOGITS[:, :2]), distributions.Categorical(logits=LOGITS[:, 2:])]
    action = torch.stack([torch.randint(2, (7,)), torch.randint(3, (7,))], 1)
    expected = sum(part.log_prob(index) for part, index in zip(parts, action.unbind(1), strict=True))
    index = action[:, 0] * 3 + action[:, 1]
    assert torch.equal(torch.stack(ours.parts(index), 1), action)
    assert torch.allclose(ours.log_prob(LOGITS, index), expected, atol=1e-6)
    assert torch.allclose(ours.entropy(LOGITS), sum(part.entropy() for part in parts), atol=1e-6)
    sample = ours.sample(LOGITS.repeat(50, 1))
    assert sample.shape == (350,) and set(sample.tolist()) == set(range(6))
    assert torch.equal(ours.mode(LOGITS), LOGITS[:, :2].argmax(1) * 3 + LOGITS[:, 2:].argmax(1))


def test_samples_have_the_probabilities_of_the_logits():
    torch.manual_seed(1)
    logits = torch.tensor([0.0, 1.0, -2.0]).expand(60_000, 3)
    frequency = Categorical((3,)).sample(logits).bincount(minlength=3) / 60_000
    assert torch.allclose(frequency, logits[0].softmax(0), atol=0.01)


def test_masked_actions_are_never_taken_and_do_not_count():
    ours, mask = Categorical((5,)), torch.tensor([True, False, True, False, False]).expand(7, 5)
    logits = ours.mask_logits(LOGITS, mask)
    assert set(ours.sample(logits.repeat(200, 1)).tolist()) == {0, 2}
    theirs = distributions.Categorical(logits=LOGITS[:, [0, 2]])
    assert torch.allclose(ours.entropy(logits), theirs.entropy(), atol=1e-6)
    assert torch.allclose(
        ours.log_prob(logits, torch.full((7,), 2)), theirs.log_prob(torch.ones(7)), atol=1e-6
    )
    grad_logits = LOGITS.clone().requires_grad_()
    ours.entropy(ours.mask_logits(grad_logits, mask)).sum().backward()
    assert torch.isfinite(grad_logits.grad).all() and not grad_logits.grad[:, 1].any()


def test_gaussian_log_prob_entropy_and_kl_match_torch():
    def theirs(outputs):
        mean, log_std = outputs.chunk(2, -1)
        return distributions.Independent(distributions.Normal(mean, log_std.exp()), 1)

    ours, (old, new), action = DiagonalGaussian(3), MEANS, torch.randn(7, 3)
    assert torch.allclose(ours.log_prob(old, action), theirs(old).log_prob(action), atol=1e-5)
    assert torch.allclose(ours.entropy(old), theirs(old).entropy(), atol=1e-5)
    kl = distributions.kl_divergence(theirs(old), theirs(new))
    assert torch.allclose(ours.kl(old, new), kl, rtol=1e-4, atol=1e-5)
    assert torch.equal(ours.mode(old), old[:, :3])


@pytest.mark.parametrize("log_std", [-1.0, 0.5])
def test_gaussian_samples_have_the_given_moments(log_std):
    torch.manual_seed(2)
    outputs = torch.tensor([0.3, log_std]).expand(50_000, 2)
    sample = DiagonalGaussian(1).sample(outputs)
    assert float(sample.mean()) == pytest.approx(0.3, abs=0.03)
    assert float(sample.std().log()) == pytest.approx(log_std, abs=0.02)
