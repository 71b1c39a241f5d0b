"""Env ids: resolve the id that a user types to an EnvConfig, list all ids, and classify them by family."""

from __future__ import annotations

import fnmatch
import re

from troop.core.env import EnvConfig
from troop.envs.envpool import catalog
from troop.envs.envpool.adapter import EnvPool
from troop.envs.envpool.lazy_import import import_envpool
from troop.envs.gymnasium.adapter import Gymnasium, registered_ids
from troop.envs.toy.config import TOY_ENVS, Toy
from troop.envs.unknown_env import unknown_env

# Families by the EnvPool module that implements them; other modules belong to the family `other`.
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
    """Return the config for `envpool:ID`, `gym:ID`, `toy:ID`, `module:ID`, `module:Class` or a bare ID.

    A bare ID is looked up in EnvPool, then in Gymnasium, then among the toy envs. `envs` sets the number of
    envs; None keeps the default of the backend. Raises BadInput with suggestions for an unknown ID.
    """
    config = _resolve(id)
    return config if envs is None else config.with_envs(envs)


def _resolve(id: str) -> EnvConfig:
    backend, colon, name = id.partition(":")
    if colon and backend == "toy":
        config = Toy(name)
        _ = config.spec  # raises BadInput for an unknown name
        return config
    if colon and backend == "envpool":
        envpool_ids = catalog.modules()
        if not envpool_ids:
            import_envpool()  # raises SetupProblem if EnvPool is not installed
        if name not in envpool_ids:
            raise unknown_env(name, envpool_ids)
        return EnvPool(name)
    if colon and backend in ("gym", "gymnasium"):
        if ":" not in name and name not in registered_ids():
            raise unknown_env(name, registered_ids())
        return Gymnasium(name)
    if colon:
        return Gymnasium(id)
    if id in catalog.modules():
        return EnvPool(id)
    if id in registered_ids():
        return Gymnasium(id)
    if id in TOY_ENVS:
        return Toy(id)
    raise unknown_env(id, [*catalog.modules(), *registered_ids(), *TOY_ENVS])


def list_envs(pattern: str = "") -> list[tuple[str, str]]:
    """Return (id, backend) of all envs whose id contains `pattern` or, if it has a `*`, matches it as a glob.

    Case is ignored.
    """
    glob = pattern.lower() if "*" in pattern else f"*{pattern.lower()}*"
    matcher = re.compile(fnmatch.translate(glob))
    envs = [(id, "envpool") for id in catalog.modules()]
    envs += [(id, "gymnasium") for id in registered_ids()]
    envs += [(f"toy:{id}", "toy") for id in TOY_ENVS]
    return [(id, backend) for id, backend in envs if matcher.match(id.lower())]


def family(id: str) -> str:
    """Return the family of the env that `resolve` finds for `id`; recipes choose hyperparameters by it.

    One of dmc, gym-mujoco, playground, classic, box2d, toy-text, atari, procgen, minigrid, vizdoom, toy,
    gymnasium and other.
    """
    backend, colon, name = id.partition(":")
    if colon and backend == "toy":
        return "toy"
    envpool_id = name if colon and backend == "envpool" else id
    module = catalog.modules().get(envpool_id)
    if module is not None:
        return FAMILIES.get(module, "other")
    if not colon and id in TOY_ENVS and id not in registered_ids():
        return "toy"
    return "gymnasium"
