"""Values as bytes without pickle: numbers, text, containers, dataclasses, arrays and tensors.

`pack` gives a short description and the list of buffers to be laid end to end; `unpack` (unpacking.py) builds
the value from the description and one block of bytes, in which all its arrays then are views.
"""

from __future__ import annotations

import dataclasses
import struct
import sys
from collections.abc import Callable
from ctypes import addressof, c_char, memmove
from mmap import mmap
from typing import Any

ALIGNMENT = 16
Block = bytes | bytearray | memoryview
DTYPES = (
    "float32", "int64", "bool", "uint8", "float64", "float16", "bfloat16", "int32", "int16", "int8",
    "uint16", "uint32", "uint64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
VIEWS = {6: "int16", 15: "uint8", 16: "uint8"}  # dtypes that NumPy lacks travel as these
Described = tuple[bytes, int, int, bool]
"""Dtype and shape packed, bytes of the array and up to the next, whether it may be conjugated lazily."""
_DESCRIBED: dict[Any, Described] = {}  # by dtype and shape, of tensors met before
INT, FLOAT, SIZE = struct.Struct("<q"), struct.Struct("<d"), struct.Struct("<I")
OFFSET = struct.Struct("<Q")
DIMENSIONS = [struct.Struct(f"<{n}Q") for n in range(33)]


def address_of(block: bytearray | memoryview | mmap) -> int:
    """Where a writable block lies."""
    return addressof(c_char.from_buffer(block))


def aligned(size: int) -> int:
    """The next place where an array may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


_CALLS: dict[tuple[str, str], bytes] = {}  # how a call of a method begins
_NOTHING = b"d" + SIZE.pack(0)
_WORDS: dict[str, bytes] = {}  # short texts, packed: the same names come again and again


class Packed:
    """What `pack` gives: `meta` describes the value, `buffers` (offset, address, bytes) are its arrays.

    Numbers come after the description and their count last of all: what differs from letter to letter is not
    in between what does not.
    """

    __slots__ = ("buffers", "meta", "numbers", "seen", "size")

    def __init__(self) -> None:
        self.meta, self.numbers = bytearray(), bytearray()
        self.buffers: list[tuple[int, int, int]] = []
        self.size = 0
        self.seen: dict[int, tuple[int, Any, Any]] = {}  # the second of two equal references costs nothing

    def closed(self) -> Packed:
        """Itself, with the numbers behind the description."""
        self.meta += self.numbers + SIZE.pack(len(self.numbers) // INT.size)
        return self

    def copy_to(self, address: int) -> None:
        """Copy all arrays into memory of at least `size` bytes."""
        for offset, source, size in self.buffers:
            memmove(address + offset, source, size)


Put = Callable[[Packed, Any], None]


def pack(value: Any) -> Packed:  # noqa: ANN401
    """The value, described; its arrays are not copied yet and must not change until they are laid."""
    packed = Packed()
    _PUTS[type(value)](packed, value)
    return packed.closed()


def pack_call(node: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Packed:
    """What `pack` gives for the four together, in half the time."""
    packed = Packed()
    packed.meta += _CALLS.get((node, method)) or call_prefix(node, method)
    _PUTS[tuple](packed, args)
    if kwargs:
        _PUTS[dict](packed, kwargs)
    else:
        packed.meta += _NOTHING
    return packed.closed()


def call_prefix(node: str, method: str) -> bytes:
    """How the description of every call of a method begins."""
    packed = Packed()
    packed.meta += b"t" + SIZE.pack(4)
    _put_str(packed, node)
    _put_str(packed, method)
    found = _CALLS[(node, method)] = bytes(packed.meta)
    return found


def _way_of(kind: type) -> Put:
    """How values of this type are packed; TypeError if they cannot be."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and issubclass(kind, torch.Tensor):
        return _put_tensor
    if numpy is not None and issubclass(kind, numpy.ndarray):
        return _put_ndarray
    if numpy is not None and issubclass(kind, numpy.generic):
        return lambda packed, value: _PUTS[type(value.item())](packed, value.item())
    if dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return _record_way(kind)
    for known in (dict, tuple, list, bool, int, float, str, bytes):
        if issubclass(kind, known):
            return _PUTS[known]
    raise TypeError(
        f"a {kind.__module__}.{kind.__qualname__} cannot be sent to another host; send numbers, text, "
        "lists, tuples, dicts, dataclasses, arrays or tensors"
    )


def _put_int(packed: Packed, value: Any) -> None:  # noqa: ANN401
    if -(1 << 63) <= value < 1 << 63:
        packed.meta += b"i"
        packed.numbers += INT.pack(value)
    else:
        packed.meta += b"I"
        _put_text(packed.meta, str(int(value)).encode())


def _put_float(packed: Packed, value: Any) -> None:  # noqa: ANN401
    packed.meta += b"f"
    packed.numbers += FLOAT.pack(value)


def _put_text(meta: bytearray, text: bytes) -> None:
    meta += SIZE.pack(len(text)) + text


def _put_str(packed: Packed, value: Any) -> None:  # noqa: ANN401
    known = _WORDS.get(value)
    if known is None:
        text = value.encode("utf-8", "surrogatepass")
        known = b"s" + SIZE.pack(len(text)) + text
        if len(_WORDS) < 4096 and len(known) < 100:
            _WORDS[value] = known
    packed.meta += known


def _put_bytes(packed: Packed, value: Any) -> None:  # noqa: ANN401
    packed.meta += b"b"
    _put_text(packed.meta, value)


def _put_sequence(tag: bytes) -> Put:
    def put(packed: Packed, value: Any) -> None:  # noqa: ANN401
        packed.meta += tag + SIZE.pack(len(value))
        for item in value:
            _PUTS[type(item)](packed, item)

    return put


def _put_dict(packed: Packed, value: Any) -> None:  # noqa: ANN401
    packed.meta += b"d" + SIZE.pack(len(value))
    for key, item in value.items():
        _PUTS[type(key)](packed, key)
        _PUTS[type(item)](packed, item)


def _record_way(kind: type) -> Put:
    header = bytearray(b"D" if dataclasses.is_dataclass(kind) else b"Y")
    _put_text(header, f"{kind.__module__}:{kind.__qualname__}".encode())
    if not dataclasses.is_dataclass(kind):
        header += SIZE.pack(len(kind._fields))  # type: ignore[attr-defined]
        names = kind._fields  # type: ignore[attr-defined]
    else:
        names = tuple(field.name for field in dataclasses.fields(kind))

    def put(packed: Packed, value: Any) -> None:  # noqa: ANN401
        packed.meta += header
        for name in names:
            item = getattr(value, name)
            _PUTS[type(item)](packed, item)

    return put


def _put_tensor(packed: Packed, value: Any) -> None:  # noqa: ANN401
    if (before := packed.seen.get(id(value))) is not None:
        packed.meta += b"r" + SIZE.pack(before[0])
        return
    described = _DESCRIBED.get((value.dtype, value.shape)) or _described(value)
    plain = value
    if not (value.is_cpu and value.is_contiguous()) or described[3]:
        plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    _put_array(packed, b"x", described, plain.data_ptr(), value, plain)


def _described(value: Any) -> Described:  # noqa: ANN401
    if len(_DESCRIBED) > 4096:
        _DESCRIBED.clear()
    head, size = _head(str(value.dtype)[6:], tuple(value.shape)), value.nbytes
    found = _DESCRIBED[(value.dtype, value.shape)] = (head, size, aligned(size), value.is_complex())
    return found


def _put_ndarray(packed: Packed, value: Any) -> None:  # noqa: ANN401
    if (before := packed.seen.get(id(value))) is not None:
        packed.meta += b"r" + SIZE.pack(before[0])
        return
    plain = value if value.flags.c_contiguous else value.copy()
    if not plain.dtype.isnative:
        plain = plain.astype(plain.dtype.newbyteorder("="))
    described = (_head(value.dtype.name, value.shape), plain.nbytes, aligned(plain.nbytes), False)
    _put_array(packed, b"a", described, plain.__array_interface__["data"][0], value, plain)


def _head(name: str, shape: tuple[int, ...]) -> bytes:
    if name not in DTYPES:
        raise TypeError(f"an array of {name} cannot be sent to another host")
    return bytes([DTYPES.index(name), len(shape)]) + DIMENSIONS[len(shape)].pack(*shape)


def _put_array(
    packed: Packed,
    tag: bytes,
    described: Described,
    address: int,
    value: Any,  # noqa: ANN401
    plain: Any,  # noqa: ANN401
) -> None:
    offset, seen = packed.size, packed.seen
    packed.meta += tag + OFFSET.pack(offset) + described[0]
    # Both are held on to: the one lest another gets its id, the other for its memory.
    seen[id(value)] = (len(seen), value, plain)
    if size := described[1]:
        packed.buffers.append((offset, address, size))
        packed.size = offset + described[2]


class _Ways(dict[type, Put]):
    """How each type is packed; found out when it is first met."""

    def __missing__(self, kind: type) -> Put:
        way = self[kind] = _way_of(kind)
        return way


_PUTS = _Ways(
    {
        type(None): lambda packed, value: packed.meta.extend(b"N"),
        bool: lambda packed, value: packed.meta.extend(b"T" if value else b"F"),
        int: _put_int,
        float: _put_float,
        str: _put_str,
        bytes: _put_bytes,
        list: _put_sequence(b"l"),
        tuple: _put_sequence(b"t"),
        dict: _put_dict,
    }
)
