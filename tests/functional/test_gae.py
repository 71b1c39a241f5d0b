"""GAE against the golden vector of the literature and an O(T^2) reference that knows every episode."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from troop.functional import advantage_kernels
from troop.functional.advantage_loops import exponential
from troop.functional.gae import gae, with_final_values
from troop.functional.vtrace import vtrace


def column(values):
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def test_golden_vector():
    value = column([0.5, 1.0, -0.5, 0.25, 3.0])
    discount = column([0.9, 0.9, 0.0, 0.9])
    trace = (discount > 0).double()
    advantage = gae(column([1.0, 0.0, -1.0, 2.0]), discount, value[:-1], value[1:], trace, 0.95)
    assert advantage.squeeze(1).tolist() == pytest.approx([-0.205262, -1.8775, -0.5, 4.45], abs=1e-6)


def test_lambda_0_is_the_td_error_and_lambda_1_the_monte_carlo_return_minus_the_value():
    reward, value = column([1.0, 2.0, 3.0]), column([0.5, -1.0, 2.0, 4.0])
    discount, trace = torch.full((3, 1), 0.9, dtype=torch.float64), torch.ones(3, 1, dtype=torch.float64)
    td_error = gae(reward, discount, value[:-1], value[1:], trace, 0.0)
    assert torch.allclose(td_error, reward + 0.9 * value[1:] - value[:-1])
    returns = gae(reward, discount, value[:-1], value[1:], trace, 1.0) + value[:-1]
    assert float(returns[0]) == pytest.approx(1 + 0.9 * 2 + 0.81 * 3 + 0.729 * 4)


steps = st.sampled_from(["step", "terminated", "truncated", "invalid"])


def reference(kinds, reward, value, successor, gamma, gae_lambda):
    """Sum the discounted TD errors of the rest of the episode, separately for every step."""
    advantages = []
    for first, kind in enumerate(kinds):
        total, weight = 0.0, 1.0
        for t in range(first, len(kinds)):
            if kinds[t] == "invalid":
                break
            discount = 0.0 if kinds[t] == "terminated" else gamma
            total += weight * (reward[t] + discount * successor[t] - value[t])
            weight *= gamma * gae_lambda
            if kinds[t] != "step":
                break
        advantages.append(0.0 if kind == "invalid" else total)
    return advantages


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, min_size=1, max_size=9), st.sampled_from([0.0, 0.5, 0.95, 1.0]), st.integers(0, 10**6))
def test_any_sequence_of_ends_and_resets_matches_the_reference(kinds, gae_lambda, seed):
    generator = torch.Generator().manual_seed(seed)
    reward, value, successor = torch.randn(3, len(kinds), generator=generator, dtype=torch.float64)
    valid = torch.tensor([kind != "invalid" for kind in kinds]).double()
    discount = column([0.9 if kind in ("step", "truncated") else 0.0 for kind in kinds]).squeeze(1)
    trace = torch.tensor([float(kind == "step") for kind in kinds]).double()
    rows = [x.unsqueeze(1) for x in (reward * valid, discount, value * valid, successor, trace)]
    expected = reference(kinds, reward.tolist(), value.tolist(), successor.tolist(), 0.9, gae_lambda)
    assert gae(*rows, gae_lambda).squeeze(1).tolist() == pytest.approx(expected, abs=1e-9)


def test_successors_are_the_next_values_except_at_final_observations():
    values = torch.arange(6.0).view(3, 2)
    final = with_final_values(values, torch.tensor([-1.0, -2.0]), torch.tensor([1, 2]))
    assert final.tolist() == [[2.0, -1.0], [-2.0, 5.0]]
    assert values.view(-1).tolist() == list(range(6))


def test_the_compiled_loops_of_large_batches_equal_the_tensor_operations(monkeypatch):
    torch.manual_seed(0)
    reward, value, successor, log_ratio = torch.randn(4, 7, 36)
    discount, trace = (torch.rand(2, 7, 36) < 0.7).float().mul_(0.9)
    inputs = reward, discount, value, successor.t().contiguous().t(), trace
    expected = gae(*inputs, 0.95), *vtrace(log_ratio, *inputs, 1.0, 0.9, 1.2, 0.95)
    monkeypatch.setattr(advantage_kernels, "MIN_ELEMENTS", 1)
    assert advantage_kernels.use_kernel(*inputs)
    results = gae(*inputs, 0.95), *vtrace(log_ratio, *inputs, 1.0, 0.9, 1.2, 0.95)
    for result, other in zip(results, expected, strict=True):
        assert torch.allclose(result, other, atol=1e-6)
    log_ratio[3, 5] = float("nan")
    assert vtrace(log_ratio, *inputs)[1][3, 5].isnan()  # not as if it were clipped
    assert not advantage_kernels.use_kernel(reward.clone().requires_grad_(), discount)
    assert not advantage_kernels.use_kernel(*(x.double() for x in inputs))


def test_exponential_of_the_compiled_loop():
    x = np.linspace(-87, 88, 3001, dtype=np.float32)
    result = np.array([exponential(value) for value in x])
    assert np.allclose(result, np.exp(x.astype(np.float64)), rtol=2e-7, atol=0)
    assert exponential(np.float32(0)) == 1 and np.isnan(exponential(np.float32(np.nan)))
    assert exponential(np.float32(-np.inf)) < 1e-37 and exponential(np.float32(np.inf)) > 1e38
