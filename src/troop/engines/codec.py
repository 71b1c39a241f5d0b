"""Values as bytes and back without pickle: numbers, text, containers, dataclasses, arrays and tensors.

`pack` gives a short description and the list of buffers to be laid end to end; `unpack` builds the value
from the description and one block of bytes, in which all its arrays then are views.
"""

from __future__ import annotations

import dataclasses
import importlib
import struct
import sys
from collections.abc import Callable
from typing import Any

ALIGNMENT = 16
Block = bytes | bytearray | memoryview
_DTYPES = (
    "float32", "int64", "bool", "uint8", "float64", "float16", "bfloat16", "int32", "int16", "int8",
    "uint16", "uint32", "uint64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
_VIEWS = {6: "int16", 15: "uint8", 16: "uint8"}  # dtypes that NumPy lacks travel as these
_CODES: dict[Any, int] = {}  # torch dtypes, filled in as they are met
_PLAIN = "fl?BdqihbILHQ"  # dtypes whose memory can be had as bytes without a detour
_INT, _FLOAT, _SIZE = struct.Struct("<q"), struct.Struct("<d"), struct.Struct("<I")
_ARRAY = struct.Struct("<cQBB")  # tag, offset, dtype, dimensions
_DIMENSIONS = [struct.Struct(f"<{n}Q") for n in range(33)]


class Packed:
    """What `pack` gives: `meta` describes the value, `buffers` (offset, bytes) are its arrays."""

    __slots__ = ("buffers", "meta", "seen", "size")

    def __init__(self) -> None:
        self.meta = bytearray()
        self.buffers: list[tuple[int, memoryview]] = []
        self.size = 0
        self.seen: dict[int, tuple[int, Any]] = {}  # the second of two equal references costs nothing

    def lay(self, block: memoryview) -> None:
        """Copy all arrays into a block of at least `size` bytes."""
        for offset, buffer in self.buffers:
            block[offset : offset + buffer.nbytes] = buffer

    def payload(self) -> bytearray:
        """All arrays in a block of their own."""
        block = bytearray(self.size)
        self.lay(memoryview(block))
        return block


def pack(value: Any) -> Packed:  # noqa: ANN401
    """The value, described; its arrays are not copied yet and must not change until they are laid."""
    packed = Packed()
    _put(packed, value)
    return packed


def _put(packed: Packed, value: Any) -> None:  # noqa: ANN401
    put = _PUTS.get(type(value))
    if put is None:
        put = _PUTS[type(value)] = _way_of(type(value))
    put(packed, value)


def _way_of(kind: type) -> Callable[[Packed, Any], None]:
    """How values of this type are packed; TypeError if they cannot be."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and issubclass(kind, torch.Tensor):
        return _put_tensor
    if numpy is not None and issubclass(kind, numpy.ndarray):
        return _put_ndarray
    if numpy is not None and issubclass(kind, numpy.generic):
        return lambda packed, value: _put(packed, value.item())
    if dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return _record_way(kind)
    for known in (dict, tuple, list, bool, int, float, str, bytes):
        if issubclass(kind, known):
            return _PUTS[known]
    raise TypeError(
        f"a {kind.__module__}.{kind.__qualname__} cannot be sent to another host; send numbers, text, "
        "lists, tuples, dicts, dataclasses, arrays or tensors"
    )


def _put_int(packed: Packed, value: int) -> None:
    if -(1 << 63) <= value < 1 << 63:
        packed.meta += b"i" + _INT.pack(value)
    else:
        packed.meta += b"I"
        _put_text(packed.meta, str(int(value)).encode())


def _put_text(meta: bytearray, text: bytes) -> None:
    meta += _SIZE.pack(len(text)) + text


def _put_str(packed: Packed, value: str) -> None:
    packed.meta += b"s"
    _put_text(packed.meta, value.encode("utf-8", "surrogatepass"))


def _put_bytes(packed: Packed, value: bytes) -> None:
    packed.meta += b"b"
    _put_text(packed.meta, value)


def _put_sequence(tag: bytes) -> Callable[[Packed, Any], None]:
    def put(packed: Packed, value: Any) -> None:  # noqa: ANN401
        packed.meta += tag + _SIZE.pack(len(value))
        for item in value:
            _put(packed, item)

    return put


def _put_dict(packed: Packed, value: dict[Any, Any]) -> None:
    packed.meta += b"d" + _SIZE.pack(len(value))
    for key, item in value.items():
        _put(packed, key)
        _put(packed, item)


def _record_way(kind: type) -> Callable[[Packed, Any], None]:
    header = bytearray(b"D" if dataclasses.is_dataclass(kind) else b"Y")
    _put_text(header, f"{kind.__module__}:{kind.__qualname__}".encode())
    if not dataclasses.is_dataclass(kind):
        header += _SIZE.pack(len(kind._fields))  # type: ignore[attr-defined]
        names = kind._fields  # type: ignore[attr-defined]
    else:
        names = tuple(field.name for field in dataclasses.fields(kind))

    def put(packed: Packed, value: Any) -> None:  # noqa: ANN401
        packed.meta += header
        for name in names:
            _put(packed, getattr(value, name))

    return put


def _put_tensor(packed: Packed, value: Any) -> None:  # noqa: ANN401
    if (seen := packed.seen.get(id(value))) is not None:
        packed.meta += b"r" + _SIZE.pack(seen[0])
        return
    packed.seen[id(value)] = (len(packed.buffers), value)
    code = _CODES.get(value.dtype)
    if code is None:
        code = _CODES[value.dtype] = _code(str(value.dtype)[6:])
    if _VIEWS.get(code) is not None:
        array = (
            value.detach().contiguous().view(getattr(sys.modules["torch"], _VIEWS[code])).numpy(force=True)
        )
    else:
        array = (
            value.numpy(force=True) if value.requires_grad or value.device.type != "cpu" else value.numpy()
        )
    _put_array(packed, b"x", code, array)


def _put_ndarray(packed: Packed, value: Any) -> None:  # noqa: ANN401
    if (seen := packed.seen.get(id(value))) is not None:
        packed.meta += b"r" + _SIZE.pack(seen[0])
        return
    packed.seen[id(value)] = (len(packed.buffers), value)
    _put_array(packed, b"a", _code(value.dtype.name), value)


def _code(name: str) -> int:
    if name not in _DTYPES:
        raise TypeError(f"an array of {name} cannot be sent to another host")
    return _DTYPES.index(name)


def _put_array(packed: Packed, tag: bytes, code: int, array: Any) -> None:  # noqa: ANN401
    shape, size = array.shape, array.nbytes
    packed.meta += _ARRAY.pack(tag, packed.size, code, len(shape)) + _DIMENSIONS[len(shape)].pack(*shape)
    if size == 0:
        packed.buffers.append((packed.size, memoryview(b"")))
        return
    if not array.flags.c_contiguous:
        array = array.copy()
    plain = array.dtype.char in _PLAIN
    buffer = memoryview(array).cast("B") if plain else memoryview(array.reshape(-1).view("u1"))
    packed.buffers.append((packed.size, buffer))
    packed.size += -(-size // ALIGNMENT) * ALIGNMENT


_PUTS: dict[type, Callable[[Packed, Any], None]] = {
    type(None): lambda packed, value: packed.meta.extend(b"N"),
    bool: lambda packed, value: packed.meta.extend(b"T" if value else b"F"),
    int: _put_int,
    float: lambda packed, value: packed.meta.extend(b"f" + _FLOAT.pack(value)),
    str: _put_str,
    bytes: _put_bytes,
    list: _put_sequence(b"l"),
    tuple: _put_sequence(b"t"),
    dict: _put_dict,
}


def unpack(meta: bytes | bytearray | memoryview, payload: Block = b"") -> Any:  # noqa: ANN401
    """The value; its arrays are views of `payload`, which must not be written again."""
    return _Reader(bytes(meta), payload).take()


class _Reader:
    """Walks a description once."""

    __slots__ = ("arrays", "at", "meta", "payload")

    def __init__(self, meta: bytes, payload: Block) -> None:
        self.meta, self.payload, self.at = meta, payload, 0
        self.arrays: list[Any] = []

    def take(self) -> Any:  # noqa: ANN401
        """The next value."""
        tag = self.meta[self.at]
        self.at += 1
        return _TAKES[tag](self)

    def size(self) -> int:
        """A length."""
        (size,) = _SIZE.unpack_from(self.meta, self.at)
        self.at += 4
        return int(size)

    def text(self) -> bytes:
        """Bytes after their length."""
        size = self.size()
        self.at += size
        return self.meta[self.at - size : self.at]

    def whole(self) -> int:
        """An int."""
        self.at += 8
        return int(_INT.unpack_from(self.meta, self.at - 8)[0])

    def real(self) -> float:
        """A float."""
        self.at += 8
        return float(_FLOAT.unpack_from(self.meta, self.at - 8)[0])

    def mapping(self) -> dict[Any, Any]:
        """A dict."""
        return {self.take(): self.take() for _ in range(self.size())}

    def record(self) -> Any:  # noqa: ANN401
        """A dataclass, its fields as they were: nothing is computed again."""
        kind, names = _record(self.text())
        value: Any = object.__new__(kind)
        for name in names:
            object.__setattr__(value, name, self.take())
        return value

    def named_tuple(self) -> Any:  # noqa: ANN401
        """A named tuple."""
        kind, _ = _record(self.text())
        return kind(*[self.take() for _ in range(self.size())])

    def ndarray(self) -> Any:  # noqa: ANN401
        """An array that is a view of the block."""
        array = self._array()[0]
        self.arrays.append(array)
        return array

    def tensor(self) -> Any:  # noqa: ANN401
        """A tensor that is a view of the block."""
        import torch

        array, code = self._array()
        tensor = torch.from_numpy(array)
        if code in _VIEWS:
            tensor = tensor.view(getattr(torch, _DTYPES[code]))
        self.arrays.append(tensor)
        return tensor

    def _array(self) -> tuple[Any, int]:
        import numpy

        _, offset, code, dimensions = _ARRAY.unpack_from(self.meta, self.at - 1)
        self.at += _ARRAY.size - 1
        shape = _DIMENSIONS[dimensions].unpack_from(self.meta, self.at)
        self.at += 8 * dimensions
        dtype = _VIEWS.get(code) or _DTYPES[code]
        if 0 in shape:
            return numpy.empty(shape, dtype), code
        return numpy.ndarray(shape, dtype, self.payload, offset), code


_RECORDS: dict[bytes, tuple[type, tuple[str, ...]]] = {}


def _record(path: bytes) -> tuple[type, tuple[str, ...]]:
    """A dataclass or named tuple by its name; nothing else is ever looked up."""
    if path not in _RECORDS:
        module, _, name = path.decode().partition(":")
        kind: Any = importlib.import_module(module)
        for part in name.split("."):
            kind = getattr(kind, part)
        if dataclasses.is_dataclass(kind):
            names = tuple(field.name for field in dataclasses.fields(kind))
        elif isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
            names = kind._fields
        else:
            raise TypeError(f"{name} is no dataclass")
        _RECORDS[path] = (kind, names)
    return _RECORDS[path]


_TAKES: dict[int, Callable[[_Reader], Any]] = {
    ord("N"): lambda reader: None,
    ord("T"): lambda reader: True,
    ord("F"): lambda reader: False,
    ord("i"): _Reader.whole,
    ord("I"): lambda reader: int(reader.text()),
    ord("f"): _Reader.real,
    ord("s"): lambda reader: reader.text().decode("utf-8", "surrogatepass"),
    ord("b"): lambda reader: reader.text(),
    ord("l"): lambda reader: [reader.take() for _ in range(reader.size())],
    ord("t"): lambda reader: tuple([reader.take() for _ in range(reader.size())]),
    ord("d"): _Reader.mapping,
    ord("D"): _Reader.record,
    ord("Y"): _Reader.named_tuple,
    ord("x"): _Reader.tensor,
    ord("a"): _Reader.ndarray,
    ord("r"): lambda reader: reader.arrays[reader.size()],
}
