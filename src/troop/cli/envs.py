"""troop envs [PATTERN]: what can be trained on."""

from __future__ import annotations

from troop.cli.parse import Parser, say
from troop.core.errors import BadInput


def run(argv: list[str]) -> int:
    """List ids."""
    parser = Parser("envs", "List env ids, e.g. `troop envs walker` or `troop envs 'G1*'`.")
    parser.add_argument("pattern", nargs="?", default="", help="part of an id, or a pattern with *")
    args = parser.parse(argv)
    from troop.envs import list_envs

    found = list_envs(args.pattern)
    if not found:
        raise BadInput(f"No env matches {args.pattern!r}; `troop envs` lists all.")
    width = max(len(id) for id, _ in found)
    for id, backend in found:
        say(f"{id:{width}}  {backend}")
    return 0
