"""The list of EnvPool's tasks, cached on disk because importing EnvPool takes two seconds."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import logging
from functools import lru_cache

from troop.envs.envpool.lazy_import import import_envpool
from troop.envs.user_cache import user_cache_dir, write_atomically

log = logging.getLogger(__name__)


@lru_cache(maxsize=1)
def modules() -> dict[str, str]:
    """Return, for every EnvPool id, the EnvPool module that implements it; {} if EnvPool is not installed."""
    spec = importlib.util.find_spec("envpool")
    if spec is None:
        return {}
    version = importlib.metadata.version("envpool")
    digest = hashlib.sha256(str(spec.origin).encode()).hexdigest()[:12]
    path = user_cache_dir() / f"envpool-{version}-{digest}.json"
    try:
        cached: dict[str, str] = json.loads(path.read_text())
        return cached
    except (OSError, ValueError):
        pass
    import_envpool()
    from envpool.registration import registry

    module_by_id = {id: entry[0] for id, entry in registry.specs.items()}
    try:
        write_atomically(path, json.dumps(module_by_id))
    except OSError as error:
        log.warning("Cannot cache the list of EnvPool tasks in %s: %s", path, error)
    return module_by_id
