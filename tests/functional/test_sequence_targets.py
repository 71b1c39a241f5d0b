import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from troop.functional.sequences import n_step_returns, sequence_priority


def column(values):
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def test_golden_returns_of_three_steps():
    """r 1..5, gamma 0.9, a termination after the third reward, values 10..50 of the successors."""
    discount, ended = column([0.9, 0.9, 0.0, 0.9, 0.9]), column([0, 0, 1, 0, 0]).bool()
    returns = n_step_returns(column([1, 2, 3, 4, 5]), discount, ended, column([10, 20, 30, 40, 50]), 3)
    assert returns.flatten().tolist() == pytest.approx([5.23, 4.7, 3.0, 49.0, 50.0])


def slow_return(reward, discount, ended, next_value, n, t):
    """Sum rewards until n steps, the end of the episode or the end of the sequence; then bootstrap."""
    total, factor = 0.0, 1.0
    for k in range(n):
        total += factor * reward[t + k]
        factor *= discount[t + k]
        if ended[t + k] or t + k == len(reward) - 1:
            break
    return total + factor * next_value[t + k]


rows = st.tuples(st.floats(-5, 5), st.sampled_from(["step", "terminate", "truncate"]), st.floats(-5, 5))


@given(st.lists(rows, min_size=1, max_size=12), st.integers(1, 7))
def test_returns_equal_a_loop_over_the_steps(drawn, n):
    reward, kind, value = zip(*drawn, strict=True)
    discount = [0.0 if k == "terminate" else 0.9 for k in kind]
    ended = [k != "step" for k in kind]
    returns = n_step_returns(column(reward), column(discount), column(ended).bool(), column(value), n)
    expected = [slow_return(reward, discount, ended, value, n, t) for t in range(len(reward))]
    assert returns.flatten().tolist() == pytest.approx(expected, abs=1e-9)


def test_priorities_by_hand():
    error = torch.tensor([[1.0, -3.0, 9.0], [-2.0, 0.5, 9.0], [0.5, 7.0, 9.0]])
    learned = torch.tensor([[True, True, False], [True, True, False], [True, False, False]])
    priority = sequence_priority(error, learned, 0.9)
    assert priority.tolist() == pytest.approx([0.9 * 2 + 0.1 * 3.5 / 3, 0.9 * 3 + 0.1 * 1.75, 0.0])
