"""AXIS 4: where roles live and who loops."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from troop.engines.inline import Inline
    from troop.engines.processes.engine import Processes
    from troop.engines.ray.engine import Ray

__all__ = ["Inline", "Processes", "Ray"]


def __getattr__(name: str) -> object:
    """Import on first use: a host's process needs neither engine, and may not even need torch."""
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
