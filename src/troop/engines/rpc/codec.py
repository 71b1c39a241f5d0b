"""Encodes values without pickle: numbers, strings, containers, dataclasses, NumPy arrays and torch tensors.

`pack` returns a short description of the value and the list of its array buffers, which are copied one after
the other into a block of bytes. `decode.unpack` rebuilds the value; its arrays are views of that block.
"""

from __future__ import annotations

import dataclasses
import struct
import sys
from collections.abc import Callable
from ctypes import addressof, c_char, memmove
from mmap import mmap
from typing import Any

ALIGNMENT = 16  # bytes; every array starts at a multiple of this
Buffer = bytes | bytearray | memoryview
DTYPES = (
    "float32", "int64", "bool", "uint8", "float64", "float16", "bfloat16", "int32", "int16", "int8",
    "uint16", "uint32", "uint64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
STORAGE_DTYPES = {6: "int16", 15: "uint8", 16: "uint8"}  # sent instead of dtypes that NumPy lacks, by index
ArrayHeader = tuple[bytes, int, int, bool]
"""Encoded dtype and shape, bytes of the array, the same rounded up to ALIGNMENT, whether it is complex."""
_TENSOR_HEADERS: dict[Any, ArrayHeader] = {}  # by dtype and shape
_NDARRAY_HEADERS: dict[Any, ArrayHeader] = {}  # by dtype and shape; computing the name of a dtype is slow
INT, FLOAT, SIZE = struct.Struct("<q"), struct.Struct("<d"), struct.Struct("<I")
OFFSET = struct.Struct("<Q")
DIMENSIONS = [struct.Struct(f"<{n}Q") for n in range(33)]


def address_of(block: bytearray | memoryview | mmap) -> int:
    """Return the memory address of a writable block."""
    return addressof(c_char.from_buffer(block))


def aligned(size: int) -> int:
    """Round a number of bytes up to a multiple of ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


_CALL_PREFIXES: dict[tuple[str, str], bytes] = {}  # by node and method
_EMPTY_DICT = b"d" + SIZE.pack(0)
_SHORT_STRINGS: dict[str, bytes] = {}  # encoded; the same names occur in every message


class Packed:
    """Result of `pack`: `meta` describes the value, `buffers` are (offset, source, bytes) of its arrays.

    The source is a contiguous NumPy array, whose address is slow to read, or the address of a tensor.
    In `meta`, the numbers follow the description and their count comes last. Messages that differ only in
    numbers and array contents thus have the same description, which `decode` parses once.
    """

    __slots__ = ("arrays", "buffers", "meta", "numbers", "size")

    def __init__(self) -> None:
        self.meta, self.numbers = bytearray(), bytearray()
        self.buffers: list[tuple[int, Any, int]] = []
        self.size = 0  # bytes of all arrays, with padding
        # By id: index, the array and its contiguous copy. A second reference to an array is sent as an index.
        self.arrays: dict[int, tuple[int, Any, Any]] = {}

    def finish(self) -> Packed:
        """Append the numbers and their count to the description; return self."""
        self.meta += self.numbers + SIZE.pack(len(self.numbers) // INT.size)
        return self

    def copy_to(self, address: int) -> None:
        """Copy all arrays to memory of at least `size` bytes."""
        for offset, source, size in self.buffers:
            if type(source) is not int:
                source = source.__array_interface__["data"][0]
            memmove(address + offset, source, size)


Packer = Callable[[Packed, Any], None]
"""Appends the description of a value of one type."""


def pack(value: Any) -> Packed:  # noqa: ANN401
    """Describe a value. Its arrays are not copied yet and must not change before `copy_to`.

    Raises TypeError if the value contains an object of an unsupported type.
    """
    packed = Packed()
    _PACKERS[type(value)](packed, value)
    return packed.finish()


def pack_call(node: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Packed:
    """Return the same as `pack((node, method, args, kwargs))`, in half the time."""
    packed = Packed()
    packed.meta += _CALL_PREFIXES.get((node, method)) or call_prefix(node, method)
    _PACKERS[tuple](packed, args)
    if kwargs:
        _PACKERS[dict](packed, kwargs)
    else:
        packed.meta += _EMPTY_DICT
    return packed.finish()


def call_prefix(node: str, method: str) -> bytes:
    """Return the bytes with which the description of every call of a method starts."""
    packed = Packed()
    packed.meta += b"t" + SIZE.pack(4)
    _put_str(packed, node)
    _put_str(packed, method)
    prefix = _CALL_PREFIXES[(node, method)] = bytes(packed.meta)
    return prefix


def _packer_for(kind: type) -> Packer:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and issubclass(kind, torch.Tensor):
        return _put_tensor
    if numpy is not None and issubclass(kind, numpy.ndarray):
        return _put_ndarray
    if numpy is not None and issubclass(kind, numpy.generic):
        return lambda packed, value: _PACKERS[type(value.item())](packed, value.item())
    if dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return _record_packer(kind)
    for base in (dict, tuple, list, bool, int, float, str, bytes):
        if issubclass(kind, base):
            return _PACKERS[base]
    raise TypeError(
        f"a {kind.__module__}.{kind.__qualname__} cannot be sent to another host; send numbers, strings, "
        "lists, tuples, dicts, dataclasses, arrays or tensors"
    )


def _put_int(packed: Packed, value: Any) -> None:  # noqa: ANN401
    if -(1 << 63) <= value < 1 << 63:
        packed.meta += b"i"
        packed.numbers += INT.pack(value)
    else:
        packed.meta += b"I"
        _put_sized(packed.meta, str(int(value)).encode())


def _put_float(packed: Packed, value: Any) -> None:  # noqa: ANN401
    packed.meta += b"f"
    packed.numbers += FLOAT.pack(value)


def _put_sized(meta: bytearray, content: bytes) -> None:
    meta += SIZE.pack(len(content)) + content


def _put_str(packed: Packed, value: Any) -> None:  # noqa: ANN401
    encoded = _SHORT_STRINGS.get(value)
    if encoded is None:
        text = value.encode("utf-8", "surrogatepass")
        encoded = b"s" + SIZE.pack(len(text)) + text
        if len(_SHORT_STRINGS) < 4096 and len(encoded) < 100:
            _SHORT_STRINGS[value] = encoded
    packed.meta += encoded


def _put_bytes(packed: Packed, value: Any) -> None:  # noqa: ANN401
    packed.meta += b"b"
    _put_sized(packed.meta, value)


def _sequence_packer(tag: bytes) -> Packer:
    def put(packed: Packed, value: Any) -> None:  # noqa: ANN401
        packed.meta += tag + SIZE.pack(len(value))
        for item in value:
            _PACKERS[type(item)](packed, item)

    return put


def _put_dict(packed: Packed, value: Any) -> None:  # noqa: ANN401
    packed.meta += b"d" + SIZE.pack(len(value))
    for key, item in value.items():
        _PACKERS[type(key)](packed, key)
        _PACKERS[type(item)](packed, item)


def _record_packer(kind: type) -> Packer:
    """Return the packer of a dataclass or named tuple: its import path, then its fields."""
    header = bytearray(b"D" if dataclasses.is_dataclass(kind) else b"Y")
    _put_sized(header, f"{kind.__module__}:{kind.__qualname__}".encode())
    if not dataclasses.is_dataclass(kind):
        header += SIZE.pack(len(kind._fields))  # type: ignore[attr-defined]
        names = kind._fields  # type: ignore[attr-defined]
    else:
        names = tuple(field.name for field in dataclasses.fields(kind))

    def put(packed: Packed, value: Any) -> None:  # noqa: ANN401
        packed.meta += header
        for name in names:
            item = getattr(value, name)
            _PACKERS[type(item)](packed, item)

    return put


def _put_tensor(packed: Packed, value: Any) -> None:  # noqa: ANN401
    if (earlier := packed.arrays.get(id(value))) is not None:
        packed.meta += b"r" + SIZE.pack(earlier[0])
        return
    header = _TENSOR_HEADERS.get((value.dtype, value.shape)) or _tensor_header(value)
    plain = value
    if not (value.is_cpu and value.is_contiguous()) or header[3]:
        plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    _put_array(packed, b"x", header, plain.data_ptr(), value, plain)


def _tensor_header(value: Any) -> ArrayHeader:  # noqa: ANN401
    if len(_TENSOR_HEADERS) > 4096:
        _TENSOR_HEADERS.clear()
    encoded, size = _dtype_and_shape(str(value.dtype)[6:], tuple(value.shape)), value.nbytes
    header = _TENSOR_HEADERS[(value.dtype, value.shape)] = (encoded, size, aligned(size), value.is_complex())
    return header


def _put_ndarray(packed: Packed, value: Any) -> None:  # noqa: ANN401
    if (earlier := packed.arrays.get(id(value))) is not None:
        packed.meta += b"r" + SIZE.pack(earlier[0])
        return
    plain = value if value.flags.c_contiguous else value.copy()
    if not plain.dtype.isnative:
        plain = plain.astype(plain.dtype.newbyteorder("="))
    header = _NDARRAY_HEADERS.get((plain.dtype, plain.shape)) or _ndarray_header(plain)
    _put_array(packed, b"a", header, plain, value, plain)


def _ndarray_header(value: Any) -> ArrayHeader:  # noqa: ANN401
    if len(_NDARRAY_HEADERS) > 4096:
        _NDARRAY_HEADERS.clear()
    encoded, size = _dtype_and_shape(value.dtype.name, value.shape), value.nbytes
    header = _NDARRAY_HEADERS[(value.dtype, value.shape)] = (encoded, size, aligned(size), False)
    return header


def _dtype_and_shape(dtype: str, shape: tuple[int, ...]) -> bytes:
    if dtype not in DTYPES:
        raise TypeError(f"an array of {dtype} cannot be sent to another host")
    return bytes([DTYPES.index(dtype), len(shape)]) + DIMENSIONS[len(shape)].pack(*shape)


def _put_array(
    packed: Packed,
    tag: bytes,
    header: ArrayHeader,
    source: Any,  # noqa: ANN401
    value: Any,  # noqa: ANN401
    plain: Any,  # noqa: ANN401
) -> None:
    offset, arrays = packed.size, packed.arrays
    packed.meta += tag + OFFSET.pack(offset) + header[0]
    # References are kept to `value`, so that its id stays in use, and to `plain`, whose memory is copied.
    arrays[id(value)] = (len(arrays), value, plain)
    if size := header[1]:
        packed.buffers.append((offset, source, size))
        packed.size = offset + header[2]


class _Packers(dict[type, Packer]):
    """The packer of each type, determined when a value of the type is first packed."""

    def __missing__(self, kind: type) -> Packer:
        packer = self[kind] = _packer_for(kind)
        return packer


_PACKERS = _Packers(
    {
        type(None): lambda packed, value: packed.meta.extend(b"N"),
        bool: lambda packed, value: packed.meta.extend(b"T" if value else b"F"),
        int: _put_int,
        float: _put_float,
        str: _put_str,
        bytes: _put_bytes,
        list: _sequence_packer(b"l"),
        tuple: _sequence_packer(b"t"),
        dict: _put_dict,
    }
)
