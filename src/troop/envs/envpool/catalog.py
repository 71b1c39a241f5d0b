"""Which tasks EnvPool has and of which family each is, without the two seconds of importing it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import logging
from collections.abc import Iterable
from functools import lru_cache

from troop.core.config import suggest
from troop.core.errors import BadInput
from troop.envs.envpool.lazy_import import import_envpool
from troop.envs.user_cache import cache_folder, write_whole

log = logging.getLogger(__name__)


def unknown_id(id: str, known: Iterable[str]) -> BadInput:
    """The error for a misspelt id, with the nearest right ones."""
    close = suggest(id, known)
    if not close:
        return BadInput(f"Unknown env '{id}'; `troop envs` lists all there are.")
    said = " or ".join(f"'{name}'" for name in close)
    return BadInput(f"Unknown env '{id}'; did you mean {said}?")


@lru_cache(maxsize=1)
def modules() -> dict[str, str]:
    """Every EnvPool id with the EnvPool module that implements it; empty if EnvPool is not installed."""
    found = importlib.util.find_spec("envpool")
    if found is None:
        return {}
    version = importlib.metadata.version("envpool")
    digest = hashlib.sha256(str(found.origin).encode()).hexdigest()[:12]
    path = cache_folder() / f"envpool-{version}-{digest}.json"
    try:
        known: dict[str, str] = json.loads(path.read_text())
        return known
    except (OSError, ValueError):
        pass
    import_envpool()
    from envpool.registration import registry

    known = {id: entry[0] for id, entry in registry.specs.items()}
    try:
        write_whole(path, json.dumps(known))
    except OSError as error:
        log.warning("Cannot remember EnvPool's list of tasks: %s", error)
    return known
