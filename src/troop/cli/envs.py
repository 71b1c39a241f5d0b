"""troop envs [PATTERN]: list env ids."""

from __future__ import annotations

from troop.cli.parse import Parser, echo
from troop.core.errors import BadInput

DESCRIPTION = """\
List the ids of envs and the library that simulates each.

The first column is what --env takes. An env of your own needs no entry: --env my_package.my_module:ID.
"""
EPILOG = """\
examples:
  troop envs                all envs
  troop envs walker         ids that contain "walker"
  troop envs 'G1*'          ids that match a pattern
"""


def run(argv: list[str]) -> int:
    """Print one line per env: id and backend."""
    parser = Parser("envs", DESCRIPTION, EPILOG)
    parser.add_argument("pattern", nargs="?", default="", help="part of an id, or a pattern with *")
    args = parser.parse(argv)
    from troop.envs import list_envs

    envs = list_envs(args.pattern)
    if not envs:
        raise BadInput(f"No env matches {args.pattern!r}; `troop envs` lists all.")
    width = max(len(env_id) for env_id, _ in envs)
    for env_id, backend in envs:
        echo(f"{env_id:{width}}  {backend}")
    return 0
