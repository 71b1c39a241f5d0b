"""`python -m troop` is the `troop` command."""

from troop.cli.main import main

main()
