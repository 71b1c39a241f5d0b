from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from troop.core.config import bounded, check
from troop.core.config_json import decode, encode


@dataclass(frozen=True)
class Inner:
    size: int = bounded(3, low=1)
    widths: tuple[int, ...] = bounded((4, 5), low=1)


@dataclass(frozen=True)
class Outer:
    rate: float = bounded(0.5, above=0, high=1)
    inner: Inner = Inner()
    name: str | None = None
    enabled: bool = False


CLASSES = {encode(config)["kind"]: type(config) for config in (Inner(), Outer())}


@given(
    st.floats(0.001, 1),
    st.integers(1, 99),
    st.lists(st.integers(1, 9), min_size=1),
    st.none() | st.text(),
    st.booleans(),
)
@pytest.mark.reliability("C2")
def test_decode_inverts_encode_of_any_config(rate, size, widths, name, enabled):
    config = Outer(rate, Inner(size, tuple(widths)), name, enabled)
    check(config)
    assert decode(encode(config), CLASSES.__getitem__) == config
