"""Rows of several callers as one call, and the answer's rows back to each."""

from __future__ import annotations

import dataclasses
from typing import Any


class NotJoinable(Exception):
    """These calls have to be made one by one."""


def rows(value: Any) -> int | None:  # noqa: ANN401
    """Rows of the first array inside, None if there is none."""
    if _is_array(value):
        return int(value.shape[0]) if value.ndim else None
    for part in _parts(value) or ():
        if (found := rows(part)) is not None:
            return found
    return None


def join(values: list[Any], counts: list[int]) -> Any:  # noqa: ANN401
    """Values of one structure, arrays laid row after row; Unjoinable if anything else differs."""
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
        return _concatenated(values)
    if isinstance(first, dict):  # the same keys may stand in another order
        if any(value.keys() != first.keys() for value in values):
            raise NotJoinable
        values = [{key: value[key] for key in first} for value in values]
    parts = [_parts(value) for value in values]
    if parts[0] is None:
        if any(value != first for value in values):
            raise NotJoinable
        return first
    if any(part is None or len(part) != len(parts[0]) for part in parts):
        raise NotJoinable
    joined = [join(list(column), counts) for column in zip(*parts, strict=True)]
    return _rebuilt(first, joined)


def split(value: Any, counts: list[int]) -> list[Any]:  # noqa: ANN401
    """The answer of a joined call, each caller's rows; what is no array goes to all."""
    if _is_array(value):
        if value.ndim == 0 or value.shape[0] != sum(counts):
            raise ValueError(f"a batched method answered {tuple(value.shape)} to {sum(counts)} rows")
        ends = [sum(counts[: i + 1]) for i in range(len(counts))]
        return [value[end - count : end] for end, count in zip(ends, counts, strict=True)]
    parts = _parts(value)
    if parts is None:
        return [value] * len(counts)
    columns = [split(part, counts) for part in parts]
    return [_rebuilt(value, [column[i] for column in columns]) for i in range(len(counts))]


def _is_array(value: Any) -> bool:  # noqa: ANN401
    return hasattr(value, "ndim") and hasattr(value, "shape")


def _parts(value: Any) -> list[Any] | None:  # noqa: ANN401
    if isinstance(value, dict):
        return [value[key] for key in value]
    if isinstance(value, list | tuple):
        return list(value)
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return None


def _rebuilt(like: Any, parts: list[Any]) -> Any:  # noqa: ANN401
    if isinstance(like, dict):
        return dict(zip(like, parts, strict=True))
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return type(like)(*parts)
    if isinstance(like, list | tuple):
        return type(like)(parts)
    built = object.__new__(type(like))
    for field, part in zip(dataclasses.fields(like), parts, strict=True):
        object.__setattr__(built, field.name, part)
    return built


def _concatenated(values: list[Any]) -> Any:  # noqa: ANN401
    if hasattr(values[0], "requires_grad"):
        import torch

        return torch.cat(values)
    import numpy

    return numpy.concatenate(values)
