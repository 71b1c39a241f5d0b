"""Batching: concatenates the rows of several calls into one call and splits the rows of its result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import Any

_FIELDS: dict[type, tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]] | None] = {}
"""Names of the fields of each dataclass and the function that reads them; None for other classes."""


class NotJoinable(Exception):
    """The calls differ in more than their rows and must be made one by one."""


def row_count(value: Any) -> int | None:  # noqa: ANN401
    """Return the size of the first dimension of the first array in a nested value; None without one."""
    if _is_array(value):
        return int(value.shape[0]) if value.ndim else None
    for child in _children(value) or ():
        if (count := row_count(child)) is not None:
            return count
    return None


def layout(value: Any) -> Hashable:  # noqa: ANN401
    """Return everything but the rows of a nested value; values of equal layout can be joined.

    Raises TypeError if a leaf is not hashable.
    """
    if _is_array(value):
        parts: Hashable = (type(value), value.dtype, tuple(value.shape[1:]))
    elif isinstance(value, dict):  # the keys may have another order
        parts = (type(value), frozenset((key, layout(child)) for key, child in value.items()))
    elif (children := _children(value)) is not None:
        parts = (type(value), *map(layout, children))
    else:
        hash(value)
        parts = (type(value), value)
    return parts


def join_rows(values: list[Any], counts: list[int]) -> Any:  # noqa: ANN401
    """Concatenate nested values of one structure along the first dimension of their arrays.

    Raises NotJoinable if the values differ in anything but their rows, or an array of value i does not have
    `counts[i]` rows.
    """
    first = values[0]
    if len(set(map(type, values))) > 1:
        raise NotJoinable
    if _is_array(first):
        dtype, row_shape = first.dtype, first.shape[1:]
        if any([value.dtype != dtype or value.shape[1:] != row_shape for value in values]):
            raise NotJoinable
        if [value.shape[0] if value.ndim else None for value in values] != counts:
            raise NotJoinable
        return _concatenate(values)
    if isinstance(first, dict):  # the keys may have another order
        if any(value.keys() != first.keys() for value in values):
            raise NotJoinable
        columns = [[value[key] for value in values] for key in first]
    elif _children(first) is None:
        if any(value != first for value in values):
            raise NotJoinable
        return first
    else:
        children = [_children(value) or () for value in values]
        if len(set(map(len, children))) > 1:
            raise NotJoinable
        columns = list(map(list, zip(*children, strict=True)))
    return _rebuild(first, [join_rows(column, counts) for column in columns])


def split_rows(value: Any, counts: list[int]) -> list[Any]:  # noqa: ANN401
    """Split the result of a joined call into one result per caller; leaves that are not arrays go to all.

    Raises ValueError if an array does not have `sum(counts)` rows.
    """
    if _is_array(value):
        if value.ndim == 0 or value.shape[0] != sum(counts):
            raise ValueError(f"a batched method returned shape {tuple(value.shape)} for {sum(counts)} rows")
        ends = [sum(counts[: i + 1]) for i in range(len(counts))]
        return [value[end - count : end] for end, count in zip(ends, counts, strict=True)]
    children = _children(value)
    if children is None:
        return [value] * len(counts)
    columns = [split_rows(child, counts) for child in children]
    return [_rebuild(value, [column[i] for column in columns]) for i in range(len(counts))]


def _is_array(value: Any) -> bool:  # noqa: ANN401
    return hasattr(value, "ndim") and hasattr(value, "shape")


def _children(value: Any) -> Sequence[Any] | None:  # noqa: ANN401
    """Return the items of a container or the fields of a dataclass; None for a leaf."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple):
        return value
    fields = _fields(type(value))
    return None if fields is None else fields[1](value)


def _fields(kind: type) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]] | None:
    """Return the entry of `_FIELDS` of a class."""
    if kind not in _FIELDS:
        names = tuple(x.name for x in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None
        _FIELDS[kind] = None if names is None else (names, _reader(names))
    return _FIELDS[kind]


def _reader(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _rebuild(like: Any, children: Sequence[Any]) -> Any:  # noqa: ANN401
    if isinstance(like, dict):
        return dict(zip(like, children, strict=True))
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return type(like)(*children)
    if isinstance(like, list | tuple):
        return type(like)(children)
    built, fields = object.__new__(type(like)), _fields(type(like))
    assert fields is not None
    for name, child in zip(fields[0], children, strict=True):
        object.__setattr__(built, name, child)
    return built


def _concatenate(values: list[Any]) -> Any:  # noqa: ANN401
    if hasattr(values[0], "requires_grad"):
        import torch

        return torch.cat(values)
    import numpy

    return numpy.concatenate(values)
