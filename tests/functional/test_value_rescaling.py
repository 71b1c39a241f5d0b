import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from troop.functional.value_rescaling import inverse_rescale, rescale


def test_golden_values():
    h = rescale(torch.tensor([100.0, 1.0, 0.0, -1.0], dtype=torch.float64))
    assert h.tolist() == pytest.approx([9.149876, 0.415214, 0.0, -0.415214], abs=1e-6)


@given(st.floats(-1e6, 1e6), st.sampled_from([1e-3, 1e-2]))
def test_the_inverse_undoes_the_rescaling(x, epsilon):
    value = torch.tensor(x, dtype=torch.float64)
    assert float(inverse_rescale(rescale(value, epsilon), epsilon)) == pytest.approx(x, rel=1e-9, abs=1e-12)


@given(st.floats(-1e4, 1e4, width=32))
def test_float32_keeps_the_digits_of_small_values(x):
    """The formulas as printed in the paper lose them: their error at 0.01 is 1e-4 in float32."""
    restored = inverse_rescale(rescale(torch.tensor(x)))
    assert float(restored) == pytest.approx(x, rel=1e-5, abs=1e-6)


@given(st.floats(-1e3, 1e3))
def test_both_equal_the_formulas_of_the_paper(x):
    value, e = torch.tensor(x, dtype=torch.float64), 1e-3
    h = value.sign() * ((value.abs() + 1).sqrt() - 1) + e * value
    assert float(rescale(value)) == pytest.approx(float(h), abs=1e-9)
    root = ((1 + 4 * e * (value.abs() + 1 + e)).sqrt() - 1) / (2 * e)
    assert float(inverse_rescale(value)) == pytest.approx(
        float(value.sign() * (root**2 - 1)), rel=1e-6, abs=1e-6
    )
