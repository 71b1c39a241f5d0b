"""V-trace against the golden vectors of the literature and the O(T^2) definition."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from troop.functional.gae import gae
from troop.functional.vtrace import vtrace

REWARD, VALUE, BOOTSTRAP = [1.0, 0.0, -1.0, 2.0], [0.5, 1.0, -0.5, 0.25], 3.0
RHO, DISCOUNT = [0.5, 2.0, 1.0, 0.8], [0.9, 0.9, 0.0, 0.9]


def column(values):
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def golden(rho, **settings):
    discount = column(DISCOUNT)
    next_value = column([*VALUE[1:], BOOTSTRAP])
    v, advantage = vtrace(
        column(rho).log(),
        column(REWARD),
        discount,
        column(VALUE),
        next_value,
        (discount > 0).double(),
        **settings,
    )
    return v.squeeze(1).tolist(), advantage.squeeze(1).tolist()


@pytest.mark.parametrize(
    "rho, options, v, advantage",
    [
        (RHO, {}, [0.345, -0.9, -1, 3.81], [-0.155, -1.9, -0.5, 3.56]),
        (RHO, {"rho_bar": 2, "pg_rho_bar": 2}, [-0.3075, -2.35, -1, 3.81], [-0.8075, -3.8, -0.5, 3.56]),
        (RHO, {"trace_lambda": 0.5}, [0.823125, -0.675, -1, 3.81], [-0.05375, -1.9, -0.5, 3.56]),
        ([1.0] * 4, {}, [0.19, -0.9, -1, 4.7], [-0.31, -1.9, -0.5, 4.45]),
    ],
)
def test_golden_vectors(rho, options, v, advantage):
    ours = golden(rho, **options)
    assert ours[0] == pytest.approx(v, abs=1e-6) and ours[1] == pytest.approx(advantage, abs=1e-6)


def definition(kinds, rho, reward, value, successor, options):
    """Sum the corrected TD errors of the rest of the episode, separately for every step (equation 1)."""
    gamma, targets = 0.9, []
    rho_bar, c_bar, trace_lambda = options
    for first in range(len(kinds)):
        total, weight = value[first], 1.0
        for t in range(first, len(kinds)):
            discount = 0.0 if kinds[t] == "terminated" else gamma
            total += weight * min(rho_bar, rho[t]) * (reward[t] + discount * successor[t] - value[t])
            weight *= discount * trace_lambda * min(c_bar, rho[t])
            if kinds[t] != "step":
                break
        targets.append(total)
    return targets


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(["step", "terminated", "truncated"]), min_size=1, max_size=9),
    st.sampled_from([(1.0, 1.0, 1.0), (2.0, 1.0, 0.7), (math.inf, 1.0, 1.0), (0.5, 0.5, 0.0)]),
    st.integers(0, 10**6),
)
def test_any_sequence_of_ends_matches_the_definition(kinds, options, seed):
    generator = torch.Generator().manual_seed(seed)
    reward, value, final = torch.randn(3, len(kinds), generator=generator, dtype=torch.float64)
    rho = torch.empty(len(kinds), dtype=torch.float64).uniform_(-2.5, 2.5, generator=generator).exp()
    successor = torch.cat((value[1:], final[-1:]))
    truncated = torch.tensor([kind == "truncated" for kind in kinds])
    successor = torch.where(truncated, final, successor)  # of the final observation
    discount = column([0.0 if kind == "terminated" else 0.9 for kind in kinds])
    trace = column([float(kind == "step") for kind in kinds])
    rho_bar, c_bar, trace_lambda = options
    rows = [x.unsqueeze(1) for x in (rho.log(), reward)]
    v, advantage = vtrace(
        *rows, discount, value.unsqueeze(1), successor.unsqueeze(1), trace, rho_bar, c_bar, 1.0, trace_lambda
    )
    expected = definition(kinds, rho.tolist(), reward.tolist(), value.tolist(), successor.tolist(), options)
    assert v.squeeze(1).tolist() == pytest.approx(expected, abs=1e-9)
    for t, kind in enumerate(kinds):
        next_target = expected[t + 1] if kind == "step" and t + 1 < len(kinds) else float(successor[t])
        td_error = reward[t] + discount[t, 0] * next_target - value[t]
        assert float(advantage[t]) == pytest.approx(float(rho[t].clamp_max(1.0) * td_error), abs=1e-9)


@pytest.mark.reliability("N6")
def test_on_policy_it_is_the_n_step_return_and_gae_with_lambda_1():
    torch.manual_seed(0)
    reward, value, successor = torch.randn(3, 6, 4, dtype=torch.float64)
    successor[:-1] = value[1:]
    discount = torch.where(torch.rand(6, 4) < 0.2, 0.0, 0.9).double()
    trace = (discount > 0).double()
    v, advantage = vtrace(torch.zeros(6, 4).double(), reward, discount, value, successor, trace)
    assert torch.allclose(v - value, gae(reward, discount, value, successor, trace, 1.0))
    assert torch.allclose(advantage, v - value)


def test_an_unroll_cut_in_two_gives_the_same_targets_if_the_second_part_bootstraps_the_first():
    torch.manual_seed(1)
    reward, value, ratio = torch.randn(3, 8, 3, dtype=torch.float64)
    successor = torch.cat((value[1:], torch.randn(1, 3).double()))
    discount, trace = torch.full((8, 3), 0.9).double(), torch.ones(8, 3).double()
    whole, _ = vtrace(ratio, reward, discount, value, successor, trace)
    late, _ = vtrace(*(x[5:] for x in (ratio, reward, discount, value, successor, trace)))
    assert torch.allclose(whole[5:], late)
    early_successor = successor[:5].clone()
    early_successor[4] = late[0]  # v of the first entry of the second part instead of V
    early, _ = vtrace(*(x[:5] for x in (ratio, reward, discount, value)), early_successor, trace[:5])
    rho = ratio[4].exp().clamp_max(1.0)
    correction = rho * 0.9 * (late[0] - value[5])  # which the whole unroll weighs with c = rho
    assert torch.allclose(whole[4], early[4]) and torch.allclose(
        whole[4] - value[4] - rho * (reward[4] + 0.9 * value[5] - value[4]), correction
    )


def test_small_rho_bar_teaches_nothing_and_large_ratios_stay_finite():
    reward, value = torch.ones(5, 2), torch.zeros(5, 2)
    discount, trace, successor = torch.full((5, 2), 0.9), torch.ones(5, 2), torch.ones(5, 2)
    v, _ = vtrace(torch.zeros(5, 2), reward, discount, value, successor, trace, rho_bar=1e-9)
    assert torch.allclose(v, value, atol=1e-6)
    v, a = vtrace(torch.full((5, 2), 2.5), reward, discount, value, successor, trace, math.inf, 1.0, math.inf)
    assert torch.isfinite(v).all() and torch.isfinite(a).all()
    assert not v.requires_grad and not a.requires_grad
