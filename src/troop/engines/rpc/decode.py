"""Decodes values that the codec has packed.

Messages of one kind have the same description and differ in numbers and arrays. Each description is
therefore parsed once into a DecodePlan, which is cached and executed for every message with that description.
"""

from __future__ import annotations

import dataclasses
import importlib
import struct
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from troop.engines.rpc.codec import DIMENSIONS, DTYPES, FLOAT, INT, OFFSET, SIZE, STORAGE_DTYPES, Buffer

MAX_CACHED_DESCRIPTION = 1 << 14  # bytes; plans of longer descriptions are not cached
MAX_CACHED_PLANS = 500

Builder = Callable[[list[Any]], Any]
"""Builds a value from the list of all numbers of the message followed by all its arrays."""

ArrayMaker = Callable[[Buffer, int], Any]
"""Creates one array as a view of a block, given the offset at which the arrays of the message start."""


def unpack(meta: Buffer, payload: Buffer = b"", start: int = 0) -> Any:  # noqa: ANN401
    """Return the value. Its arrays are views of `payload` from `start`, which must not be modified again."""
    plan, numbers = decode_plan(meta)
    return plan.build([*numbers, *plan.views(payload, start)])


def decode_plan(meta: Buffer) -> tuple[DecodePlan, tuple[Any, ...]]:
    """Return the plan for a description and the numbers of this message."""
    (count,) = SIZE.unpack_from(meta, len(meta) - SIZE.size)
    end = len(meta) - SIZE.size - count * INT.size
    key = bytes(meta[:end])
    plan = _PLANS.get(key) or _new_plan(key, count)
    return plan, plan.numbers(meta, end)


def _new_plan(meta: bytes, count: int) -> DecodePlan:
    plan = DecodePlan(meta, count)
    plan.cached = len(meta) < MAX_CACHED_DESCRIPTION
    if plan.cached:
        if len(_PLANS) > MAX_CACHED_PLANS:
            _PLANS.clear()
        _PLANS[meta] = plan
    return plan


class DecodePlan:
    """A parsed description: builds values from numbers and arrays without parsing again.

    `build` builds the value, `numbers` unpacks the numbers of a message and `arrays` creates its arrays.
    """

    cached = False

    def __init__(self, meta: bytes, count: int) -> None:
        self.arrays: list[ArrayMaker] = []
        self._meta, self._position, self._count = meta, 0, count
        self._number_formats: list[str] = []
        self.build = self._parse()
        self.numbers = struct.Struct("<" + "".join(self._number_formats)).unpack_from

    def views(self, payload: Buffer, start: int = 0) -> list[Any]:
        """Return all arrays as views of `payload` from `start`."""
        return [make(payload, start) for make in self.arrays]

    def _parse(self) -> Builder:
        """Parse the next value of the description."""
        tag = self._meta[self._position : self._position + 1]
        self._position += 1
        if tag in (b"x", b"a", b"r"):
            return self._parse_array(tag)
        if tag in _NUMBERS:
            self._number_formats.append(_NUMBERS[tag])
            return itemgetter(len(self._number_formats) - 1)
        if tag in _CONTAINERS:
            return _CONTAINERS[tag](self)
        value = _CONSTANTS[tag](self)
        return lambda parts: value

    def size(self) -> int:
        """Parse a length."""
        (size,) = SIZE.unpack_from(self._meta, self._position)
        self._position += SIZE.size
        return int(size)

    def sized_bytes(self) -> bytes:
        """Parse a length and as many bytes."""
        size = self.size()
        self._position += size
        return self._meta[self._position - size : self._position]

    def items(self) -> list[Builder]:
        """Parse a length and as many values."""
        return [self._parse() for _ in range(self.size())]

    def list_builder(self) -> Builder:
        """Parse a list."""
        items = self.items()
        return lambda parts: [item(parts) for item in items]

    def tuple_builder(self) -> Builder:
        """Parse a tuple."""
        items = self.items()
        return lambda parts: tuple([item(parts) for item in items])

    def dict_builder(self) -> Builder:
        """Parse a dict."""
        pairs = [(self._parse(), self._parse()) for _ in range(self.size())]
        return lambda parts: {key(parts): item(parts) for key, item in pairs}

    def dataclass_builder(self) -> Builder:
        """Parse a dataclass. Its fields are set directly, without `__init__` and `__post_init__`."""
        kind, names = _record_type(self.sized_bytes())
        fields = [(name, self._parse()) for name in names]

        def build(parts: list[Any]) -> Any:  # noqa: ANN401
            value: Any = object.__new__(kind)
            for name, item in fields:
                object.__setattr__(value, name, item(parts))
            return value

        return build

    def named_tuple_builder(self) -> Builder:
        """Parse a named tuple."""
        kind, _ = _record_type(self.sized_bytes())
        items = self.items()
        return lambda parts: kind(*[item(parts) for item in items])

    def _parse_array(self, tag: bytes) -> Builder:
        if tag == b"r":
            return itemgetter(self._count + self.size())
        (offset,) = OFFSET.unpack_from(self._meta, self._position)
        dtype, dimensions = self._meta[self._position + OFFSET.size : self._position + OFFSET.size + 2]
        self._position += OFFSET.size + 2
        shape = DIMENSIONS[dimensions].unpack_from(self._meta, self._position)
        self._position += DIMENSIONS[dimensions].size
        self.arrays.append(_array_maker(shape, dtype, offset, tag == b"x"))
        return itemgetter(self._count + len(self.arrays) - 1)


def _array_maker(shape: tuple[int, ...], dtype_index: int, offset: int, tensor: bool) -> ArrayMaker:
    """Return the function that creates one array; NumPy and torch are imported only when arrays arrive."""
    import numpy

    dtype = numpy.dtype(STORAGE_DTYPES.get(dtype_index) or DTYPES[dtype_index])
    ndarray = numpy.ndarray

    def array(payload: Buffer, start: int) -> Any:  # noqa: ANN401
        return numpy.empty(shape, dtype) if 0 in shape else ndarray(shape, dtype, payload, start + offset)

    if not tensor:
        return array
    import torch

    from_numpy, torch_dtype = torch.from_numpy, getattr(torch, DTYPES[dtype_index])
    if dtype_index in STORAGE_DTYPES or 0 in shape:
        return lambda payload, start: from_numpy(array(payload, start)).view(torch_dtype)
    return lambda payload, start: from_numpy(ndarray(shape, dtype, payload, start + offset))


_PLANS: dict[bytes, DecodePlan] = {}  # by description
_RECORD_TYPES: dict[bytes, tuple[type, tuple[str, ...]]] = {}  # by import path


def _record_type(path: bytes) -> tuple[type, tuple[str, ...]]:
    """Return a dataclass or named tuple and its field names; TypeError for any other object."""
    if path not in _RECORD_TYPES:
        module, _, name = path.decode().partition(":")
        kind: Any = importlib.import_module(module)
        for part in name.split("."):
            kind = getattr(kind, part)
        if dataclasses.is_dataclass(kind):
            names = tuple(field.name for field in dataclasses.fields(kind))
        elif isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
            names = kind._fields
        else:
            raise TypeError(f"{name} is neither a dataclass nor a named tuple")
        _RECORD_TYPES[path] = (kind, names)
    return _RECORD_TYPES[path]


_CONSTANTS: dict[bytes, Callable[[DecodePlan], Any]] = {
    b"N": lambda plan: None,
    b"T": lambda plan: True,
    b"F": lambda plan: False,
    b"I": lambda plan: int(plan.sized_bytes()),
    b"s": lambda plan: plan.sized_bytes().decode("utf-8", "surrogatepass"),
    b"b": DecodePlan.sized_bytes,
}
_NUMBERS = {b"i": INT.format[-1:], b"f": FLOAT.format[-1:]}
_CONTAINERS: dict[bytes, Callable[[DecodePlan], Builder]] = {
    b"l": DecodePlan.list_builder,
    b"t": DecodePlan.tuple_builder,
    b"d": DecodePlan.dict_builder,
    b"D": DecodePlan.dataclass_builder,
    b"Y": DecodePlan.named_tuple_builder,
}
