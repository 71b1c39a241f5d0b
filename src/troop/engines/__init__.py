"""AXIS 4: where roles live and who loops."""

from troop.engines.inline import Inline

__all__ = ["Inline"]
