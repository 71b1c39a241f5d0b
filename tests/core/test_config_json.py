from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from troop.core.config import bounded, check, decode, encode


@dataclass(frozen=True)
class Inner:
    size: int = bounded(3, low=1)
    wide: tuple[int, ...] = bounded((4, 5), low=1)


@dataclass(frozen=True)
class Outer:
    rate: float = bounded(0.5, above=0, high=1)
    inner: Inner = Inner()
    name: str | None = None
    on: bool = False


KINDS = {"Inner": Inner, "Outer": Outer}


@given(
    st.floats(0.001, 1),
    st.integers(1, 99),
    st.lists(st.integers(1, 9), min_size=1),
    st.none() | st.text(),
    st.booleans(),
)
def test_configs_come_back_as_they_went(rate, size, wide, name, on):
    config = Outer(rate, Inner(size, tuple(wide)), name, on)
    check(config)
    assert decode(encode(config), KINDS) == config
