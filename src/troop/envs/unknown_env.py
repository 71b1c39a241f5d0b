"""The error for an env id that no backend registers."""

from __future__ import annotations

from collections.abc import Iterable

from troop.core.config import suggest
from troop.core.errors import BadInput


def unknown_env(id: str, known: Iterable[str]) -> BadInput:
    """Return the error for an unknown `id`, with the most similar ids among `known`."""
    similar = suggest(id, known)
    if not similar:
        return BadInput(f"Unknown env {id!r}; run `troop envs` for a list of all ids.")
    names = " or ".join(f"'{name}'" for name in similar)
    return BadInput(f"Unknown env {id!r}; did you mean {names}?")
