"""`python -m troop` is the `troop` command."""

from troop.cli.command import main

main()
