import dataclasses
import math
from dataclasses import dataclass, field

import pytest

from troop.core.config import bounded, check, decode, encode, flags, suggest
from troop.core.errors import BadInput


@dataclass(frozen=True)
class Inner:
    """A part."""

    hidden_sizes: tuple[int, ...] = bounded((8, 4), low=1)


@dataclass(frozen=True)
class Outer:
    """A whole."""

    rate: float = bounded(0.1, above=0, high=1)
    count: int = bounded(2, low=1, below=9)
    name: str = "x"
    limit: int | None = bounded(None, low=1)
    inner: Inner = field(default_factory=Inner)


@pytest.mark.parametrize(
    "value, fine", [(0.0, False), (1e-9, True), (1.0, True), (1.1, False), (math.nan, False)]
)
def test_bounds_hold_at_their_edges(value, fine):
    if fine:
        check(Outer(rate=value))
    else:
        with pytest.raises(BadInput, match=r"--rate is"):
            check(Outer(rate=value))


def test_the_field_is_named_as_its_flag_with_value_and_bound():
    with pytest.raises(BadInput, match=r"^--count is 9; it must be at least 1 and below 9\.$"):
        check(Outer(count=9))
    with pytest.raises(BadInput, match=r"^--algorithm\.inner\.hidden-sizes is 0; it must be at least 1\.$"):
        check(Outer(inner=Inner((8, 0))), "algorithm.")
    check(Outer(limit=None))


def test_every_leaf_is_a_flag():
    assert dict(flags(Outer())) == {
        "rate": 0.1,
        "count": 2,
        "name": "x",
        "limit": None,
        "inner.hidden-sizes": (8, 4),
    }


KINDS = {"Outer": Outer, "Inner": Inner}


def test_configs_come_back_from_json_as_they_were():
    config = Outer(0.5, 3, "y", 7, Inner((1, 2, 3)))
    assert decode(encode(config), KINDS) == config


@pytest.mark.parametrize(
    "change, said",
    [
        ({"kind": "os.system"}, "unknown kind 'os.system'"),
        ({"count": "3"}, r"config\.count is '3'"),
        ({"count": True}, r"config\.count is True"),
        ({"count": 2.5}, r"config\.count is 2\.5"),
        ({"extra": 1}, r"config\.extra is unknown"),
        ({"inner": {"kind": "Nobody"}}, r"config\.inner is of an unknown kind"),
    ],
)
def test_a_file_that_is_no_config_is_refused_by_place(change, said):
    with pytest.raises(BadInput, match=said):
        decode(encode(Outer()) | change, KINDS)


def test_the_nearest_words_come_first_whatever_their_case():
    assert suggest("pendulm-v1", ["Pendulum-v1", "Ant-v5", "CartPole-v1"])[0] == "Pendulum-v1"
    assert suggest("zzzz", ["Pendulum-v1"]) == []


def test_configs_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Outer().count = 3
