"""The `troop` command: one module per verb, each imported only when its verb is used."""

from troop.cli.main import main

__all__ = ["main"]
