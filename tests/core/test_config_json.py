from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from troop.core.config import check, decode, encode, nearest, ranged
from troop.core.errors import BadInput


@dataclass(frozen=True)
class Inner:
    size: int = ranged(3, low=1)
    wide: tuple[int, ...] = ranged((4, 5), low=1)


@dataclass(frozen=True)
class Outer:
    rate: float = ranged(0.5, above=0, high=1)
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


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (Outer(rate=0.0), "--rate is 0.0; it must be at most 1 and above 0"),
        (Outer(rate=1.5), "--rate is 1.5"),
        (Outer(rate=float("nan")), "--rate is nan"),
        (Outer(inner=Inner(size=0)), "--inner.size is 0; it must be at least 1"),
        (Outer(inner=Inner(wide=(3, 0))), "--inner.wide is 0"),
    ],
)
def test_a_value_out_of_bounds_is_named(config, said):
    with pytest.raises(BadInput, match="^" + said.replace(".", r"\.")):
        check(config)


def test_the_nearest_name_ignores_case():
    assert nearest("walkerwalk", ["WalkerWalk", "Other"])[0] == "WalkerWalk"
    assert nearest("zzz", ["WalkerWalk"]) == []
