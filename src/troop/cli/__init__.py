"""The `troop` command: one file a verb, each imported only when it is used."""

from troop.cli.main import main

__all__ = ["main"]
