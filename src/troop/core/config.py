"""Configs are frozen dataclasses whose fields declare bounds, which are checked before a run starts."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
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
    """Return a dataclass field whose value must be in [low, high], or in (above, below) without the ends."""
    bounds = {"low": low, "high": high, "above": above, "below": below}
    return dataclasses.field(default=default, metadata={k: v for k, v in bounds.items() if v is not None})


def check(config: object, path: str = "") -> None:
    """Raise BadInput with the flag of the first field that is out of its bounds; `path` prefixes the flag."""
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name)
        name = f"{path}{field.name}".replace("_", "-")
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, float) and not math.isfinite(item):
                raise BadInput(f"--{name} is {item}; it must be a finite number.")
            if isinstance(item, int | float) and (bounds := _violated_bounds(item, field.metadata)):
                raise BadInput(f"--{name} is {item}; it must be {bounds}.")
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            check(value, f"{path}{field.name}.")


def _violated_bounds(value: float, bounds: Mapping[str, float]) -> str | None:
    """Return the bounds in words if `value` is outside of them."""
    low, high, above, below = (bounds.get(k) for k in ("low", "high", "above", "below"))
    outside = (
        (low is not None and value < low)
        or (high is not None and value > high)
        or (above is not None and value <= above)
        or (below is not None and value >= below)
    )
    if not outside:
        return None
    words = [(low, "at least"), (high, "at most"), (above, "above"), (below, "below")]
    return " and ".join(f"{word} {bound:g}" for bound, word in words if bound is not None)


def flags(config: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted flag, value) of every field that is not a nested config."""
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name)
        name = f"{path}{field.name}".replace("_", "-")
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from flags(value, f"{name}.")
        else:
            yield name, value


def suggest(word: str, names: Iterable[str], count: int = 3) -> list[str]:
    """Return up to `count` names that are spelled most like `word`, best first, ignoring case."""
    lower: dict[str, str] = {}
    for name in names:
        lower.setdefault(name.lower(), name)
    return [lower[match] for match in difflib.get_close_matches(word.lower(), lower, n=count, cutoff=0.5)]


def encode(config: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a config as JSON values; the key `kind` of an object is the class name of the dataclass."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        fields = {field.name: encode(getattr(config, field.name)) for field in dataclasses.fields(config)}
        return {"kind": type(config).__name__} | fields
    if isinstance(config, tuple | list):
        return [encode(item) for item in config]
    return config


def decode(value: Any, classes: dict[str, type], path: str = "config") -> Any:  # noqa: ANN401
    """Rebuild a config from the result of `encode`; BadInput with the path of the first invalid value.

    Only classes in `classes` are instantiated, so a file cannot name code to run.
    """
    if isinstance(value, list):
        return tuple(decode(item, classes, path) for item in value)
    if not isinstance(value, dict):
        return value
    name = value.get("kind")
    if not isinstance(name, str) or name not in classes:
        raise BadInput(
            f"{path} has an unknown kind {name!r}; it must be one of {', '.join(sorted(classes))}."
        )
    config_class = classes[name]
    hints, fields = get_type_hints(config_class), {field.name for field in dataclasses.fields(config_class)}
    arguments: dict[str, Any] = {}
    for key, item in value.items():
        if key == "kind":
            continue
        if key not in fields:
            raise BadInput(f"{path}.{key} is unknown; {name} has {', '.join(sorted(fields))}.")
        arguments[key] = decode(item, classes, f"{path}.{key}")
        if not _matches(arguments[key], hints[key]):
            raise BadInput(f"{path}.{key} is {arguments[key]!r}, which is not {hints[key]}.")
    try:
        return config_class(**arguments)
    except TypeError as error:
        raise BadInput(f"{path} is not a complete {name}: {error}.") from error


def _matches(value: Any, hint: Any) -> bool:  # noqa: ANN401
    """Whether a plain value has the annotated type; nested configs and protocols are not checked."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in args
    if origin is tuple:
        item_hint = args[0] if len(args) == 2 and args[1] is Ellipsis else Any
        return isinstance(value, tuple) and all(_matches(item, item_hint) for item in value)
    if origin is not None and args:  # a union
        return any(_matches(value, arg) for arg in args)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (bool, str, type(None)):
        return isinstance(value, hint)
    return True
