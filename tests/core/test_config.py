import dataclasses
import math
from dataclasses import dataclass, field

import pytest

from troop.core.config import bounded, check, flags, suggest
from troop.core.config_json import decode, encode
from troop.core.errors import BadInput


@dataclass(frozen=True)
class Inner:
    """A nested config."""

    hidden_sizes: tuple[int, ...] = bounded((8, 4), low=1)


@dataclass(frozen=True)
class Outer:
    """A config with bounds of all kinds."""

    rate: float = bounded(0.1, above=0, high=1)
    count: int = bounded(2, low=1, below=9)
    name: str = "x"
    limit: int | None = bounded(None, low=1)
    inner: Inner = field(default_factory=Inner)


def find_class(kind):
    classes = {encode(config)["kind"]: type(config) for config in (Inner(), Outer())}
    if kind not in classes:
        raise BadInput(f"unknown kind {kind}")
    return classes[kind]


@pytest.mark.parametrize(
    "value, valid", [(0.0, False), (1e-9, True), (1.0, True), (1.1, False), (math.nan, False)]
)
def test_bounds_are_exact_at_their_ends(value, valid):
    if valid:
        check(Outer(rate=value))
    else:
        with pytest.raises(BadInput, match=r"--rate is"):
            check(Outer(rate=value))


@pytest.mark.reliability("C1")
def test_error_has_the_flag_the_value_and_the_bounds():
    with pytest.raises(BadInput, match=r"^--count is 9; it must be at least 1 and below 9\.$"):
        check(Outer(count=9))
    with pytest.raises(BadInput, match=r"^--algorithm\.inner\.hidden-sizes is 0; it must be at least 1\.$"):
        check(Outer(inner=Inner((8, 0))), "algorithm.")
    check(Outer(limit=None))


def test_every_leaf_field_is_a_flag():
    assert dict(flags(Outer())) == {
        "rate": 0.1,
        "count": 2,
        "name": "x",
        "limit": None,
        "inner.hidden-sizes": (8, 4),
    }


def test_decode_inverts_encode():
    config = Outer(0.5, 3, "y", 7, Inner((1, 2, 3)))
    assert decode(encode(config), find_class) == config


@pytest.mark.parametrize(
    "change, message",
    [
        ({"kind": "os.system"}, r"unknown kind os\.system"),
        ({"kind": 3}, r"^config has no kind\.$"),
        ({"count": "3"}, r"config\.count is '3'"),
        ({"count": True}, r"config\.count is True"),
        ({"count": 2.5}, r"config\.count is 2\.5"),
        ({"extra": 1}, r"config\.extra is unknown"),
        ({"inner": {"kind": "Missing"}}, r"unknown kind Missing"),
        ({"inner": 3}, r"config\.inner is 3"),
    ],
)
@pytest.mark.reliability("C2")
def test_invalid_values_raise_with_their_path(change, message):
    with pytest.raises(BadInput, match=message):
        decode(encode(Outer()) | change, find_class)


@pytest.mark.reliability("C1")
def test_suggestions_ignore_case_and_start_with_the_most_similar_name():
    assert suggest("pendulm-v1", ["Pendulum-v1", "Ant-v5", "CartPole-v1"])[0] == "Pendulum-v1"
    assert suggest("zzzz", ["Pendulum-v1"]) == []


def test_configs_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Outer().count = 3
