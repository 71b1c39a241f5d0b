"""Engines: `Inline` runs all roles in one thread, `Processes` in processes, `Ray` in Ray actors."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from troop.engines.inline import Inline
    from troop.engines.processes.engine import Processes
    from troop.engines.ray.engine import Ray

__all__ = ["Inline", "Processes", "Ray"]


def __getattr__(name: str) -> object:
    """Import an engine on first use: a host process needs none of them, and may not even need torch."""
    if name == "Inline":
        from troop.engines.inline import Inline

        return Inline
    if name == "Processes":
        from troop.engines.processes.engine import Processes

        return Processes
    if name == "Ray":
        from troop.engines.ray.engine import Ray

        return Ray
    raise AttributeError(f"module 'troop.engines' has no attribute {name!r}")
