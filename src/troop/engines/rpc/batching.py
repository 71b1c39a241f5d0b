"""Batching: concatenates the rows of several calls into one call and splits the rows of its result."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

_FIELD_NAMES: dict[type, tuple[str, ...] | None] = {}  # reading them of a class is slow


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
    if any(type(value) is not type(first) for value in values):
        raise NotJoinable
    if _is_array(first):
        if any(
            v.ndim == 0 or v.shape[0] != n or v.dtype != first.dtype
            for v, n in zip(values, counts, strict=True)
        ):
            raise NotJoinable
        if any(value.shape[1:] != first.shape[1:] for value in values):
            raise NotJoinable
        return _concatenate(values)
    if isinstance(first, dict):  # the keys may have another order
        if any(value.keys() != first.keys() for value in values):
            raise NotJoinable
        values = [{key: value[key] for key in first} for value in values]
    children = [_children(value) for value in values]
    if children[0] is None:
        if any(value != first for value in values):
            raise NotJoinable
        return first
    if any(child is None or len(child) != len(children[0]) for child in children):
        raise NotJoinable
    joined = [join_rows(list(column), counts) for column in zip(*children, strict=True)]
    return _rebuild(first, joined)


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


def _children(value: Any) -> list[Any] | None:  # noqa: ANN401
    """Return the items of a container or the fields of a dataclass; None for a leaf."""
    if isinstance(value, dict):
        return [value[key] for key in value]
    if isinstance(value, list | tuple):
        return list(value)
    names = _field_names(type(value))
    return None if names is None else [getattr(value, name) for name in names]


def _field_names(kind: type) -> tuple[str, ...] | None:
    """Return the names of the fields of a dataclass; None for other classes."""
    if kind not in _FIELD_NAMES:
        names = tuple(x.name for x in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None
        _FIELD_NAMES[kind] = names
    return _FIELD_NAMES[kind]


def _rebuild(like: Any, children: list[Any]) -> Any:  # noqa: ANN401
    if isinstance(like, dict):
        return dict(zip(like, children, strict=True))
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return type(like)(*children)
    if isinstance(like, list | tuple):
        return type(like)(children)
    built = object.__new__(type(like))
    for name, child in zip(_field_names(type(like)) or (), children, strict=True):
        object.__setattr__(built, name, child)
    return built


def _concatenate(values: list[Any]) -> Any:  # noqa: ANN401
    if hasattr(values[0], "requires_grad"):
        import torch

        return torch.cat(values)
    import numpy

    return numpy.concatenate(values)
