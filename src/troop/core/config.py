"""Configs are frozen dataclasses; bounds stand beside defaults and are read before anything starts."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

from troop.core.errors import BadInput


def bounded(
    default: Any,  # noqa: ANN401 - the field's own annotation types it
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:  # noqa: ANN401
    """A dataclass field whose number must lie in [low, high] or, with above/below, strictly inside."""
    bounds = {"low": low, "high": high, "above": above, "below": below}
    return dataclasses.field(default=default, metadata={k: v for k, v in bounds.items() if v is not None})


def check(config: object, path: str = "") -> None:
    """Raise BadInput naming the first field whose value is out of its bounds, in dotted flag spelling."""
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name)
        name = f"{path}{field.name}".replace("_", "-")
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, float) and not math.isfinite(item):
                raise BadInput(f"--{name} is {item}; it must be a finite number.")
            if isinstance(item, int | float) and (said := _outside(item, field.metadata)):
                raise BadInput(f"--{name} is {item}; it must be {said}.")
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            check(value, f"{path}{field.name}.")


def _outside(value: float, bounds: Any) -> str | None:  # noqa: ANN401 - a mappingproxy of bounds
    """What the bounds ask for, if `value` does not give it."""
    low, high, above, below = (bounds.get(k) for k in ("low", "high", "above", "below"))
    bad = (
        (low is not None and value < low)
        or (high is not None and value > high)
        or (above is not None and value <= above)
        or (below is not None and value >= below)
    )
    if not bad:
        return None
    words = [(low, "at least"), (high, "at most"), (above, "above"), (below, "below")]
    return " and ".join(f"{word} {bound:g}" for bound, word in words if bound is not None)


def flags(config: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf field as (dotted flag name, value)."""
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name)
        name = f"{path}{field.name}".replace("_", "-")
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from flags(value, f"{name}.")
        else:
            yield name, value


def suggest(word: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known words most like `word`, best first, ignoring case."""
    lower: dict[str, str] = {}
    for name in known:
        lower.setdefault(name.lower(), name)
    return [lower[m] for m in difflib.get_close_matches(word.lower(), lower, n=count, cutoff=0.5)]


def encode(config: Any) -> Any:  # noqa: ANN401 - JSON
    """A config as JSON values; dataclasses carry the name of their kind."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        fields = {field.name: encode(getattr(config, field.name)) for field in dataclasses.fields(config)}
        return {"kind": type(config).__name__} | fields
    if isinstance(config, tuple | list):
        return [encode(item) for item in config]
    return config


def decode(value: Any, kinds: dict[str, type], path: str = "config") -> Any:  # noqa: ANN401
    """What `encode` gave, as configs of the given kinds; BadInput naming the place if it is not that.

    Only names in `kinds` are ever built: a file cannot name code.
    """
    if isinstance(value, list):
        return tuple(decode(item, kinds, path) for item in value)
    if not isinstance(value, dict):
        return value
    name = value.get("kind")
    if not isinstance(name, str) or name not in kinds:
        raise BadInput(f"{path} is of an unknown kind {name!r}; known are {', '.join(sorted(kinds))}.")
    kind = kinds[name]
    hints, known = get_type_hints(kind), {field.name for field in dataclasses.fields(kind)}
    found: dict[str, Any] = {}
    for key, item in value.items():
        if key == "kind":
            continue
        if key not in known:
            raise BadInput(f"{path}.{key} is unknown; {name} has {', '.join(sorted(known))}.")
        found[key] = decode(item, kinds, f"{path}.{key}")
        if not _fits(found[key], hints[key]):
            raise BadInput(f"{path}.{key} is {found[key]!r}, which is not {hints[key]}.")
    try:
        return kind(**found)
    except TypeError as error:
        raise BadInput(f"{path} is not a complete {name}: {error}.") from error


def _fits(value: Any, hint: Any) -> bool:  # noqa: ANN401
    """Whether a plain value is what the annotation says; protocols and nested configs pass."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in parts
    if origin is tuple:
        inner = parts[0] if len(parts) == 2 and parts[1] is Ellipsis else Any
        return isinstance(value, tuple) and all(_fits(item, inner) for item in value)
    if origin is not None and parts:  # unions
        return any(_fits(value, part) for part in parts)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (bool, str, type(None)):
        return isinstance(value, hint)
    return True
