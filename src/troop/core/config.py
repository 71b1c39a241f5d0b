"""Configs are frozen dataclasses: bounds stand beside the default, `check` reads them before anything starts."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Iterator
from typing import Any

from troop.core.errors import BadInput


def ranged(
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


def nearest(word: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known words most like `word`, best first, ignoring case."""
    lower: dict[str, str] = {}
    for name in known:
        lower.setdefault(name.lower(), name)
    return [lower[m] for m in difflib.get_close_matches(word.lower(), lower, n=count, cutoff=0.5)]
