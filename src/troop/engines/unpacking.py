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

from troop.engines.codec import ARRAY, DIMENSIONS, DTYPES, FLOAT, INT, SIZE, VIEWS, Block

Builder = Callable[[list[Any]], Any]
"""Makes a value, given all arrays of its letter."""

Spec = tuple[tuple[int, ...], str, int, int, bool]
"""Shape, dtype in NumPy, offset, dtype's code, whether it is a tensor."""


def unpack(meta: Block, payload: Block = b"", start: int = 0) -> Any:  # noqa: ANN401
    """The value; its arrays are views of `payload` from `start` on, which must not be written again."""
    key = bytes(meta)
    plan = _PLANS.get(key)
    if plan is None:
        plan = Plan(key)
        if plan.arrays:  # a description without arrays is short, and seldom comes twice
            if len(_PLANS) > 500:
                _PLANS.clear()
            _PLANS[key] = plan
    return plan.built(payload, start)


class Plan:
    """What a description says is to be built."""

    def __init__(self, meta: bytes) -> None:
        self.arrays: list[
            tuple[tuple[int, ...], str, int, int, bool]
        ] = []  # shape, dtype, offset, code, tensor
        self._meta, self._at = meta, 0
        self._build = self._take()

    def built(self, payload: Block, start: int) -> Any:  # noqa: ANN401
        """The value, over these bytes."""
        return self._build([_array(payload, start, spec) for spec in self.arrays] if self.arrays else [])

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
        _, offset, code, dimensions = ARRAY.unpack_from(self._meta, self._at - 1)
        self._at += ARRAY.size - 1
        shape = DIMENSIONS[dimensions].unpack_from(self._meta, self._at)
        self._at += 8 * dimensions
        self.arrays.append((shape, VIEWS.get(code) or DTYPES[code], offset, code, tag == b"x"))
        return itemgetter(len(self.arrays) - 1)


def _array(payload: Block, start: int, spec: Spec) -> Any:  # noqa: ANN401
    import numpy

    shape, dtype, offset, code, tensor = spec
    array = numpy.empty(shape, dtype) if 0 in shape else numpy.ndarray(shape, dtype, payload, start + offset)
    if not tensor:
        return array
    import torch

    made = torch.from_numpy(array)
    return made.view(getattr(torch, DTYPES[code])) if code in VIEWS else made


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
