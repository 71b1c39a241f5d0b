"""Configs are frozen dataclasses whose fields declare bounds, which are checked before a run starts."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

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
            if isinstance(item, int) and abs(item) >= 2**63:
                raise BadInput(f"--{name} has {item.bit_length()} bits; it must be below 2^63.")
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
