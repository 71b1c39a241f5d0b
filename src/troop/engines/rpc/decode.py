"""Unpacking: values from what the codec packed.

The same kinds of letters come again and again, with the same description and other numbers and arrays. So a
description is read once, into a plan, and the plan is carried out for every letter that bears it.
"""

from __future__ import annotations

import dataclasses
import importlib
import struct
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from troop.engines.rpc.codec import DIMENSIONS, DTYPES, FLOAT, INT, OFFSET, SIZE, VIEWS, Block

LONGEST = 1 << 14  # bytes of a description whose plan is kept

Builder = Callable[[list[Any]], Any]
"""Makes a value, given all numbers of its letter and then all its arrays."""

Maker = Callable[[Block, int], Any]
"""Makes one array, given the block and where in it the letter's arrays begin."""


def unpack(meta: Block, payload: Block = b"", start: int = 0) -> Any:  # noqa: ANN401
    """The value; its arrays are views of `payload` from `start` on, which must not be written again."""
    plan, numbers = decode_plan(meta)
    return plan.build([*numbers, *plan.views(payload, start)])


def decode_plan(meta: Block) -> tuple[DecodePlan, tuple[Any, ...]]:
    """How to build what is described, and the numbers to build it with."""
    (count,) = SIZE.unpack_from(meta, len(meta) - SIZE.size)
    end = len(meta) - SIZE.size - count * INT.size
    key = bytes(meta[:end])
    plan = _PLANS.get(key) or _plan(key, count)
    return plan, plan.numbers(meta, end)


def _plan(meta: bytes, count: int) -> DecodePlan:
    plan = DecodePlan(meta, count)
    plan.kept = len(meta) < LONGEST
    if plan.kept:
        if len(_PLANS) > 500:
            _PLANS.clear()
        _PLANS[meta] = plan
    return plan


class DecodePlan:
    """What a description says is to be built."""

    kept = False  # for the next letter that bears it

    def __init__(self, meta: bytes, count: int) -> None:
        self.arrays: list[Maker] = []
        self._meta, self._at, self._count = meta, 0, count
        self._kinds: list[str] = []  # of the numbers
        self.build = self._take()
        self.numbers = struct.Struct("<" + "".join(self._kinds)).unpack_from

    def views(self, payload: Block, start: int = 0) -> list[Any]:
        """All arrays, as views of `payload` from `start` on."""
        return [make(payload, start) for make in self.arrays]

    def _take(self) -> Builder:
        tag = self._meta[self._at : self._at + 1]
        self._at += 1
        if tag in (b"x", b"a", b"r"):
            return self._reference(tag)
        if tag in _NUMBERS:
            self._kinds.append(_NUMBERS[tag])
            return itemgetter(len(self._kinds) - 1)
        if tag in _CONTAINERS:
            return _CONTAINERS[tag](self)
        value = _VALUES[tag](self)
        return lambda given: value

    def size(self) -> int:
        """A length."""
        (size,) = SIZE.unpack_from(self._meta, self._at)
        self._at += SIZE.size
        return int(size)

    def text(self) -> bytes:
        """Bytes after their length."""
        size = self.size()
        self._at += size
        return self._meta[self._at - size : self._at]

    def items(self) -> list[Builder]:
        """As many values as the length before them says."""
        return [self._take() for _ in range(self.size())]

    def sequence(self) -> Builder:
        """A list."""
        items = self.items()
        return lambda given: [item(given) for item in items]

    def fixed(self) -> Builder:
        """A tuple."""
        items = self.items()
        return lambda given: tuple([item(given) for item in items])

    def mapping(self) -> Builder:
        """A dict."""
        pairs = [(self._take(), self._take()) for _ in range(self.size())]
        return lambda given: {key(given): item(given) for key, item in pairs}

    def record(self) -> Builder:
        """A dataclass, its fields as they were: nothing is computed again."""
        kind, names = _record(self.text())
        fields = [(name, self._take()) for name in names]

        def build(given: list[Any]) -> Any:  # noqa: ANN401
            value: Any = object.__new__(kind)
            for name, item in fields:
                object.__setattr__(value, name, item(given))
            return value

        return build

    def named_tuple(self) -> Builder:
        """A named tuple."""
        kind, _ = _record(self.text())
        items = self.items()
        return lambda given: kind(*[item(given) for item in items])

    def _reference(self, tag: bytes) -> Builder:
        if tag == b"r":
            return itemgetter(self._count + self.size())
        (offset,) = OFFSET.unpack_from(self._meta, self._at)
        code, dimensions = self._meta[self._at + OFFSET.size : self._at + OFFSET.size + 2]
        self._at += OFFSET.size + 2
        shape = DIMENSIONS[dimensions].unpack_from(self._meta, self._at)
        self._at += DIMENSIONS[dimensions].size
        self.arrays.append(_maker(shape, code, offset, tag == b"x"))
        return itemgetter(self._count + len(self.arrays) - 1)


def _maker(shape: tuple[int, ...], code: int, offset: int, tensor: bool) -> Maker:
    """How one array is made; libraries are loaded only where arrays come."""
    import numpy

    dtype, ndarray = numpy.dtype(VIEWS.get(code) or DTYPES[code]), numpy.ndarray

    def array(payload: Block, start: int) -> Any:  # noqa: ANN401
        return numpy.empty(shape, dtype) if 0 in shape else ndarray(shape, dtype, payload, start + offset)

    if not tensor:
        return array
    import torch

    from_numpy, kind = torch.from_numpy, getattr(torch, DTYPES[code])
    if code in VIEWS or 0 in shape:
        return lambda payload, start: from_numpy(array(payload, start)).view(kind)
    return lambda payload, start: from_numpy(ndarray(shape, dtype, payload, start + offset))


_PLANS: dict[bytes, DecodePlan] = {}
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


_VALUES: dict[bytes, Callable[[DecodePlan], Any]] = {
    b"N": lambda plan: None,
    b"T": lambda plan: True,
    b"F": lambda plan: False,
    b"I": lambda plan: int(plan.text()),
    b"s": lambda plan: plan.text().decode("utf-8", "surrogatepass"),
    b"b": DecodePlan.text,
}
_NUMBERS = {b"i": INT.format[-1:], b"f": FLOAT.format[-1:]}
_CONTAINERS: dict[bytes, Callable[[DecodePlan], Builder]] = {
    b"l": DecodePlan.sequence,
    b"t": DecodePlan.fixed,
    b"d": DecodePlan.mapping,
    b"D": DecodePlan.record,
    b"Y": DecodePlan.named_tuple,
}
