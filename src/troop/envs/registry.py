"""Env ids: resolve the id that a user types to an EnvConfig, list all ids, and classify them by family."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Callable
from typing import Any

from troop.core.contracts import check_config, default_config
from troop.core.env import EnvConfig
from troop.core.user_code import absolute_name, import_module, name_of, split
from troop.envs.envpool import catalog
from troop.envs.envpool.adapter import EnvPool
from troop.envs.envpool.lazy_import import import_envpool
from troop.envs.gymnasium.adapter import Gymnasium, registered_ids
from troop.envs.gymnasium.user_envs import find_class_or_function
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


Env = str | EnvConfig | type | Callable[..., Any]
"""How a user names an env: an id, a config, a subclass of gymnasium.Env, or a function that returns one."""


def resolve(env: Env, envs: int | None = None) -> EnvConfig:
    """Return the config of an env: a config itself, a class, a function, or an id.

    Ids are `envpool:ID`, `gym:ID`, `toy:ID`, `module:ID`, `module:Name`, `file.py:Name` or a bare ID, which
    is looked up in EnvPool, then in Gymnasium, then among the toy envs. A module is imported; its Name may be
    a subclass of gymnasium.Env, a function that returns an env, or the config class of a backend. `envs` sets
    the number of envs; None keeps the default of the backend. Raises BadInput with suggestions for an unknown
    ID.
    """
    if isinstance(env, str):
        config = _resolve(env)
    elif dataclasses.is_dataclass(env) and not isinstance(env, type):
        config = env
        check_config("env", config)
    else:
        config = _resolve(name_of(env))
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
        if ":" in name:
            return _resolve_outside(name)
        if name not in registered_ids():
            raise unknown_env(name, registered_ids())
        return Gymnasium(name)
    if colon:
        return _resolve_outside(id)
    if id in catalog.modules():
        return EnvPool(id)
    if id in registered_ids():
        return Gymnasium(id)
    if id in TOY_ENVS:
        return Toy(id)
    raise unknown_env(id, [*catalog.modules(), *registered_ids(), *TOY_ENVS])


def _resolve_outside(id: str) -> EnvConfig:
    """Return the config of an env in a module that the user names, which is imported."""
    id = absolute_name(id)
    module, name = split(id)
    found = getattr(import_module(module), name, None)
    if isinstance(found, type) and dataclasses.is_dataclass(found) and hasattr(found, "make"):
        return resolve(default_config(found))
    find_class_or_function(id)
    return Gymnasium(id)


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


def family(env: Env) -> str:
    """Return the family of the env that `resolve` finds; recipes choose hyperparameters by it.

    One of dmc, gym-mujoco, playground, classic, box2d, toy-text, atari, procgen, minigrid, vizdoom, toy,
    gymnasium and other.
    """
    if isinstance(env, Toy):
        return "toy"
    if not isinstance(env, str | EnvPool):
        return "gymnasium"
    id = env if isinstance(env, str) else f"envpool:{env.id}"
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
