"""What is sent is what arrives, and what cannot be sent is refused with a reason."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from troop.core.batch import Rollout
from troop.engines.rpc.codec import address_of, pack, pack_call
from troop.engines.rpc.decode import _PLANS, unpack
from troop.engines.rpc.shared_memory import from_memfd, to_memfd


@dataclass(frozen=True, slots=True)
class Piece:
    """A frozen dataclass with a field that its constructor does not take."""

    obs: dict
    extra: object = None
    made: int = field(default=0, init=False)


class Pair(NamedTuple):
    """A named tuple."""

    a: object
    b: object


def carried(value, start=0):
    packed = pack(value)
    block = bytearray(start + packed.size)
    if packed.size:
        packed.copy_to(address_of(block) + start)
    return unpack(packed.meta, block, start)


def same(a, b):
    if isinstance(a, torch.Tensor):
        plain = torch.uint8 if a.element_size() == 1 else a.dtype
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(plain), b.view(plain))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and (a == b or a != a)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=20,
)


@given(plain)
def test_plain_values_arrive_as_they_were(value):
    assert same(value, carried(value))


DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (5, 3, 2)], ids=str)
def test_tensors_arrive_as_they_were(dtype, shape):
    tensor = (torch.rand(shape) * 100).to(dtype)
    assert same([1, tensor, "x", tensor], carried([1, tensor, "x", tensor], start=16))


def test_odd_tensors_and_arrays():
    grown = torch.nn.Parameter(torch.randn(3))
    value = [
        torch.randn(4, 5).t(),
        torch.randn(10)[::3],
        np.arange(6.0).reshape(2, 3).T,
        np.float32(2),
        grown,
    ]
    came = carried(value)
    assert same(value[:3], came[:3]) and came[3] == 2.0 and torch.equal(came[4], grown.detach())
    assert np.array_equal(carried(np.arange(3, dtype=">i4")), [0, 1, 2])
    assert not came[4].requires_grad and came[0].is_contiguous()


def test_dataclasses_and_named_tuples_keep_their_kind():
    piece = Piece({"obs": torch.ones(2)}, Pair(1, (torch.zeros(1),)))
    object.__setattr__(piece, "made", 7)
    came = carried(piece)
    assert type(came) is Piece and came.made == 7 and type(came.extra) is Pair
    assert torch.equal(came.obs["obs"], torch.ones(2)) and came.extra.b[0].shape == (1,)


def test_one_tensor_held_twice_travels_once():
    obs = torch.randn(1000)
    packed = pack({"obs": obs, "next": obs})
    assert packed.size == 4000
    came = carried({"obs": obs, "next": obs})
    assert came["obs"] is came["next"]


def test_the_same_kind_of_value_comes_again_with_other_numbers():
    def rows(seed):
        torch.manual_seed(seed)
        flag = torch.rand(4, 2) > 0.5
        return Rollout(
            torch.arange(2),
            {"obs": torch.randn(4, 2, 3)},
            torch.randn(4, 2),
            torch.randn(4, 2),
            flag,
            flag,
            flag,
        )

    for seed in range(3):
        piece, came = rows(seed), carried(rows(seed))
        assert torch.equal(piece.obs["obs"], came.obs["obs"]) and torch.equal(
            piece.terminated, came.terminated
        )
        assert came.extras == {}
    first, second = carried([{"a": []}, torch.ones(1)]), carried([{"a": []}, torch.ones(1)])
    first[0]["a"].append(1)
    assert second[0]["a"] == []  # nothing is shared between two letters


@pytest.mark.parametrize(
    "value", [{1, 2}, object(), lambda: 1, np.array(["a"]), pytest], ids=lambda v: type(v).__name__
)
def test_what_cannot_be_sent_is_refused_by_name(value):
    with pytest.raises(TypeError, match="cannot be sent to another host"):
        pack([value])


def test_only_dataclasses_are_ever_looked_up():
    path = b"os:system"
    with pytest.raises(TypeError, match="no dataclass"):
        unpack(b"D" + len(path).to_bytes(4, "little") + path + bytes(4))


def test_a_parcel_holds_anything():
    value = {"a": torch.randn(1000, 100), "names": [str(i) for i in range(20_000)], "none": None}
    came = from_memfd(to_memfd(value))
    assert same(value, came)
    came["a"] += 1  # its own memory


@pytest.mark.parametrize("kwargs", [{}, {"after": 3, "rows": torch.ones(2)}])
def test_a_call_is_packed_as_its_four_parts_are(kwargs):
    args = (torch.arange(5), "x", {"y": (1, None)})
    for _ in range(2):  # the second finds what the first left behind
        call, parts = pack_call("node", "method", args, kwargs), pack(("node", "method", args, kwargs))
        assert call.meta == parts.meta and call.size == parts.size and call.buffers == parts.buffers


def test_letters_that_differ_in_numbers_and_arrays_only_are_described_once():
    carried((1, {"a": torch.zeros(3), 5: 0.5}))
    known = len(_PLANS)
    for i in range(2, 9):
        version, weights = carried((i, {"a": torch.full((3,), float(i)), 5: i / 2}))
        assert version == i and weights["a"][0] == i and weights[5] == i / 2
    assert len(_PLANS) == known
