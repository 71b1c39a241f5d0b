"""Codec: values arrive as they were sent; unsupported types are rejected by name."""

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
    """A frozen dataclass with a field that its constructor does not accept."""

    obs: dict
    extra: object = None
    computed: int = field(default=0, init=False)


class Pair(NamedTuple):
    """A named tuple."""

    a: object
    b: object


def round_trip(value, start=0):
    packed = pack(value)
    block = bytearray(start + packed.size)
    if packed.size:
        packed.copy_to(address_of(block) + start)
    return unpack(packed.meta, block, start)


def equal(a, b):
    if isinstance(a, torch.Tensor):
        plain = torch.uint8 if a.element_size() == 1 else a.dtype
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(plain), b.view(plain))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and (a == b or a != a)


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=20,
)


@given(plain_values)
def test_plain_values_are_unchanged(value):
    assert equal(value, round_trip(value))


DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (5, 3, 2)], ids=str)
def test_tensors_are_unchanged(dtype, shape):
    tensor = (torch.rand(shape) * 100).to(dtype)
    assert equal([1, tensor, "x", tensor], round_trip([1, tensor, "x", tensor], start=16))


def test_strided_tensors_parameters_and_foreign_byte_orders_arrive_plain():
    parameter = torch.nn.Parameter(torch.randn(3))
    values = [
        torch.randn(4, 5).t(),
        torch.randn(10)[::3],
        np.arange(6.0).reshape(2, 3).T,
        np.float32(2),
        parameter,
    ]
    decoded = round_trip(values)
    assert equal(values[:3], decoded[:3]) and decoded[3] == 2.0
    assert torch.equal(decoded[4], parameter.detach())
    assert np.array_equal(round_trip(np.arange(3, dtype=">i4")), [0, 1, 2])
    assert not decoded[4].requires_grad and decoded[0].is_contiguous()


def test_dataclasses_and_named_tuples_keep_their_type_and_fields():
    piece = Piece({"obs": torch.ones(2)}, Pair(1, (torch.zeros(1),)))
    object.__setattr__(piece, "computed", 7)
    decoded = round_trip(piece)
    assert type(decoded) is Piece and decoded.computed == 7 and type(decoded.extra) is Pair
    assert torch.equal(decoded.obs["obs"], torch.ones(2)) and decoded.extra.b[0].shape == (1,)


def test_tensor_that_occurs_twice_is_sent_once():
    obs = torch.randn(1000)
    packed = pack({"obs": obs, "next": obs})
    assert packed.size == 4000
    decoded = round_trip({"obs": obs, "next": obs})
    assert decoded["obs"] is decoded["next"]


def test_cached_plan_builds_independent_values():
    def rollout(seed):
        torch.manual_seed(seed)
        flag = torch.rand(4, 2) > 0.5
        obs = {"obs": torch.randn(4, 2, 3)}
        return Rollout(torch.arange(2), obs, torch.randn(4, 2), torch.randn(4, 2), flag, flag, flag)

    for seed in range(3):
        sent, decoded = rollout(seed), round_trip(rollout(seed))
        assert torch.equal(sent.obs["obs"], decoded.obs["obs"])
        assert torch.equal(sent.terminated, decoded.terminated)
        assert decoded.extras == {}
    first, second = round_trip([{"a": []}, torch.ones(1)]), round_trip([{"a": []}, torch.ones(1)])
    first[0]["a"].append(1)
    assert second[0]["a"] == []


@pytest.mark.parametrize(
    "value", [{1, 2}, object(), lambda: 1, np.array(["a"]), pytest], ids=lambda v: type(v).__name__
)
def test_unsupported_types_are_rejected_by_name(value):
    with pytest.raises(TypeError, match="cannot be sent to another host"):
        pack([value])


@pytest.mark.reliability("P8")
def test_decoding_looks_up_only_dataclasses_and_named_tuples():
    path = b"os:system"
    with pytest.raises(TypeError, match="neither a dataclass nor a named tuple"):
        unpack(b"D" + len(path).to_bytes(4, "little") + path + bytes(4))


def test_memfd_holds_values_of_any_size():
    value = {"a": torch.randn(1000, 100), "names": [str(i) for i in range(20_000)], "none": None}
    decoded = from_memfd(to_memfd(value))
    assert equal(value, decoded)
    decoded["a"] += 1  # its memory is writable


@pytest.mark.parametrize("kwargs", [{}, {"after": 3, "rows": torch.ones(2)}])
def test_pack_call_equals_pack_of_its_four_arguments(kwargs):
    args = (torch.arange(5), "x", {"y": (1, None)})
    for _ in range(2):  # the second call uses the cache of the first
        call, value = pack_call("node", "method", args, kwargs), pack(("node", "method", args, kwargs))
        assert call.meta == value.meta and call.size == value.size and call.buffers == value.buffers


def test_messages_that_differ_only_in_numbers_and_array_contents_share_a_plan():
    round_trip((1, {"a": torch.zeros(3), 5: 0.5}))
    plans = len(_PLANS)
    for i in range(2, 9):
        version, weights = round_trip((i, {"a": torch.full((3,), float(i)), 5: i / 2}))
        assert version == i and weights["a"][0] == i and weights[5] == i / 2
    assert len(_PLANS) == plans


@pytest.mark.reliability("P8")
@given(st.binary(max_size=200))
def test_garbage_is_an_error_or_a_plain_value(data):
    try:
        value = unpack(data, b"")
    except Exception:
        return
    assert isinstance(
        value, int | float | str | bytes | list | tuple | dict | np.ndarray | torch.Tensor | None
    )


@pytest.mark.reliability("P8")
@given(st.data())
def test_damaged_message_yields_arrays_within_the_payload_or_an_error(data):
    packed = pack({"obs": torch.arange(12.0).view(3, 4), "count": 3, "name": "actor", "rows": [1, 2.5, None]})
    meta, block = bytearray(packed.meta), bytearray(packed.size)
    packed.copy_to(address_of(block))
    for _ in range(data.draw(st.integers(1, 4))):
        meta[data.draw(st.integers(0, len(meta) - 1))] = data.draw(st.integers(0, 255))
    meta = meta[: data.draw(st.integers(0, len(meta)))]
    try:
        value = unpack(bytes(meta), block)
    except Exception:
        return
    start, end = address_of(block), address_of(block) + len(block)
    for array in value.values() if isinstance(value, dict) else []:
        if isinstance(array, torch.Tensor) and array.numel():
            assert start <= array.data_ptr() and array.data_ptr() + array.nbytes <= end
