"""From the id a user types to an EnvConfig."""

from __future__ import annotations

import fnmatch
import re

from troop.core.env import EnvConfig
from troop.envs.envpool import catalog as envpool_catalog
from troop.envs.envpool.adapter import EnvPool
from troop.envs.envpool.lazy_import import import_envpool
from troop.envs.gymnasium.adapter import Gymnasium, registered
from troop.envs.toy.config import WORLDS, Toy

FAMILIES = {
    "envpool.mujoco.dmc": "dmc",
    "envpool.mujoco.gym": "gym-mujoco",
    "envpool.mujoco.playground": "playground",
    "envpool.classic_control": "classic",
    "envpool.box2d": "box2d",
    "envpool.toy_text": "toy-text",
    "envpool.atari": "atari",
    "envpool.procgen": "procgen",
    "envpool.minigrid": "minigrid",
    "envpool.vizdoom": "vizdoom",
}


def resolve(id: str, envs: int | None = None) -> EnvConfig:
    """The config for `envpool:ID`, `gym:ID`, `toy:ID`, `module:ID`, `module:Class` or a bare ID.

    A bare ID is looked for in EnvPool, then in Gymnasium.
    """
    config = _resolve(id)
    return config if envs is None else config.with_envs(envs)


def _resolve(id: str) -> EnvConfig:
    backend, colon, name = id.partition(":")
    if colon and backend == "toy":
        config = Toy(name)
        _ = config.spec  # a misspelt name is told here, not at the first step
        return config
    if colon and backend == "envpool":
        known = envpool_catalog.modules()
        if not known:
            import_envpool()
        if name not in known:
            raise envpool_catalog.unknown_id(name, known)
        return EnvPool(name)
    if colon and backend in ("gym", "gymnasium"):
        if ":" not in name and name not in registered():
            raise envpool_catalog.unknown_id(name, registered())
        return Gymnasium(name)
    if colon:
        return Gymnasium(id)
    if id in envpool_catalog.modules():
        return EnvPool(id)
    if id in registered():
        return Gymnasium(id)
    if id in WORLDS:
        return Toy(id)
    raise envpool_catalog.unknown_id(id, [*envpool_catalog.modules(), *registered(), *WORLDS])


def list_envs(pattern: str = "") -> list[tuple[str, str]]:
    """(id, backend) of all envs whose id has `pattern` in it or, with a `*`, matches it; case is ignored."""
    wanted = pattern.lower() if "*" in pattern else f"*{pattern.lower()}*"
    matcher = re.compile(fnmatch.translate(wanted))
    found = [(id, "envpool") for id in envpool_catalog.modules()]
    found += [(id, "gymnasium") for id in registered()]
    found += [(f"toy:{id}", "toy") for id in WORLDS]
    return [(id, backend) for id, backend in found if matcher.match(id.lower())]


def family(id: str) -> str:
    """The kind of env an id names, by which recipes pick their numbers; as `resolve` would find it.

    One of dmc, gym-mujoco, playground, classic, box2d, toy-text, atari, procgen, minigrid, vizdoom, toy,
    gymnasium and other.
    """
    backend, colon, name = id.partition(":")
    if colon and backend == "toy":
        return "toy"
    bare = name if colon and backend == "envpool" else id
    module = envpool_catalog.modules().get(bare)
    if module is not None:
        return FAMILIES.get(module, "other")
    if not colon and id in WORLDS and id not in registered():
        return "toy"
    return "gymnasium"
