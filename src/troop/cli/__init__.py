"""The `troop` command: one module per verb, each imported only when its verb is used."""

from troop.cli.command import main

__all__ = ["main"]
