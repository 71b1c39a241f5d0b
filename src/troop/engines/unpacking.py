"""Unpacking: values from what the codec packed.

The same kinds of letters come again and again, with the same description and other arrays. So a description
is read once, into a plan, and the plan is carried out for every letter that bears it.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from troop.engines.codec import DIMENSIONS, DTYPES, FLOAT, INT, OFFSET, SIZE, VIEWS, Block

LONGEST = 1 << 14  # bytes of a description whose plan is kept

Builder = Callable[[list[Any]], Any]
"""Makes a value, given all arrays of its letter."""

Maker = Callable[[Block, int], Any]
"""Makes one array, given the block and where in it the letter's arrays begin."""


def unpack(meta: Block, payload: Block = b"", start: int = 0) -> Any:  # noqa: ANN401
    """The value; its arrays are views of `payload` from `start` on, which must not be written again."""
    key = bytes(meta)
    plan = _PLANS.get(key) or _plan(key)
    return plan.build([make(payload, start) for make in plan.arrays])


def _plan(meta: bytes) -> Plan:
    plan = Plan(meta)
    if plan.arrays and len(meta) < LONGEST:  # those without arrays are short, and seldom come twice
        if len(_PLANS) > 500:
            _PLANS.clear()
        _PLANS[meta] = plan
    return plan


class Plan:
    """What a description says is to be built."""

    def __init__(self, meta: bytes) -> None:
        self.arrays: list[Maker] = []
        self._meta, self._at = meta, 0
        self.build = self._take()

    def _take(self) -> Builder:
        tag = self._meta[self._at : self._at + 1]
        self._at += 1
        if tag in (b"x", b"a", b"r"):
            return self._reference(tag)
        if tag in _CONTAINERS:
            return _CONTAINERS[tag](self)
        value = _VALUES[tag](self)
        return lambda arrays: value

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

    def whole(self) -> int:
        """An int."""
        self._at += INT.size
        return int(INT.unpack_from(self._meta, self._at - INT.size)[0])

    def real(self) -> float:
        """A float."""
        self._at += FLOAT.size
        return float(FLOAT.unpack_from(self._meta, self._at - FLOAT.size)[0])

    def items(self) -> list[Builder]:
        """As many values as the length before them says."""
        return [self._take() for _ in range(self.size())]

    def sequence(self) -> Builder:
        """A list."""
        items = self.items()
        return lambda arrays: [item(arrays) for item in items]

    def fixed(self) -> Builder:
        """A tuple."""
        items = self.items()
        return lambda arrays: tuple([item(arrays) for item in items])

    def mapping(self) -> Builder:
        """A dict; its keys hold no arrays."""
        pairs = [(self._take()([]), self._take()) for _ in range(self.size())]
        return lambda arrays: {key: item(arrays) for key, item in pairs}

    def record(self) -> Builder:
        """A dataclass, its fields as they were: nothing is computed again."""
        kind, names = _record(self.text())
        fields = [(name, self._take()) for name in names]

        def build(arrays: list[Any]) -> Any:  # noqa: ANN401
            value: Any = object.__new__(kind)
            for name, item in fields:
                object.__setattr__(value, name, item(arrays))
            return value

        return build

    def named_tuple(self) -> Builder:
        """A named tuple."""
        kind, _ = _record(self.text())
        items = self.items()
        return lambda arrays: kind(*[item(arrays) for item in items])

    def _reference(self, tag: bytes) -> Builder:
        if tag == b"r":
            return itemgetter(self.size())
        (offset,) = OFFSET.unpack_from(self._meta, self._at)
        code, dimensions = self._meta[self._at + OFFSET.size : self._at + OFFSET.size + 2]
        self._at += OFFSET.size + 2
        shape = DIMENSIONS[dimensions].unpack_from(self._meta, self._at)
        self._at += DIMENSIONS[dimensions].size
        self.arrays.append(_maker(shape, code, offset, tag == b"x"))
        return itemgetter(len(self.arrays) - 1)


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


_PLANS: dict[bytes, Plan] = {}
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


_VALUES: dict[bytes, Callable[[Plan], Any]] = {
    b"N": lambda plan: None,
    b"T": lambda plan: True,
    b"F": lambda plan: False,
    b"i": Plan.whole,
    b"I": lambda plan: int(plan.text()),
    b"f": Plan.real,
    b"s": lambda plan: plan.text().decode("utf-8", "surrogatepass"),
    b"b": Plan.text,
}
_CONTAINERS: dict[bytes, Callable[[Plan], Builder]] = {
    b"l": Plan.sequence,
    b"t": Plan.fixed,
    b"d": Plan.mapping,
    b"D": Plan.record,
    b"Y": Plan.named_tuple,
}
