"""Checks of code outside Troop against the contracts in core: every missing method is named."""

from __future__ import annotations

import dataclasses
from typing import Any

from troop.core.algorithm import Algorithm, AlgorithmConfig, Policy
from troop.core.engine import Engine
from troop.core.env import EnvConfig, VectorEnv
from troop.core.errors import BadInput, TroopError
from troop.core.peers import NO_PEERS
from troop.core.system import System
from troop.core.user_code import describe

CONFIG_CONTRACTS: dict[str, type] = {
    "env": EnvConfig,
    "algorithm": AlgorithmConfig,
    "system": System,
    "engine": Engine,
}


def is_outside(value: object) -> bool:
    """Whether the class of `value` is not part of Troop."""
    return not type(value).__module__.startswith("troop.")


def check_config(field: str, config: object) -> None:
    """Raise BadInput unless `config` is a frozen dataclass with the methods that the field's contract has."""
    kind = type(config)
    if not dataclasses.is_dataclass(config) or not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise BadInput(f"{kind.__name__} cannot be the {field}: it is not a frozen dataclass.")
    fields = {item.name for item in dataclasses.fields(config)}
    _require(kind, fields, CONFIG_CONTRACTS[field], f"the {field}")


def default_config(kind: Any) -> Any:  # noqa: ANN401
    """Return an instance of a user's config class with its defaults; BadInput if a field has none."""
    return _build(f"{kind.__name__}()", kind)


def check_algorithm(config: Any, env: EnvConfig) -> None:  # noqa: ANN401
    """Build policy and learner of an algorithm outside Troop once; BadInput names what they lack."""
    name = type(config).__name__
    policy = _build(f"{name}.policy(spec)", lambda: config.policy(env.spec))
    if not isinstance(policy, Policy):
        raise BadInput(f"{name}.policy(spec) returns a {type(policy).__name__}; it must be a troop Policy.")
    if type(policy).act is Policy.act:
        raise BadInput(f"{type(policy).__name__} lacks act, which a policy needs.")
    call = f"{name}.algorithm(spec, peers=..., device='cpu')"
    learner = _build(call, lambda: config.algorithm(env.spec, peers=NO_PEERS, device="cpu"))
    _require(type(learner), set(vars(learner)), Algorithm, "a learner")


def check_env(config: EnvConfig) -> None:
    """Build one env of a backend outside Troop; BadInput names what it lacks."""
    name = type(config).__name__
    env = _build(f"{name}.make(seed)", lambda: config.with_envs(1).make(0))
    try:
        _require(type(env), set(vars(env)), VectorEnv, "a vector env")
    finally:
        if hasattr(env, "close"):
            env.close()


def _build(call: str, build: Any) -> Any:  # noqa: ANN401
    try:
        return build()
    except TroopError:
        raise
    except (Exception, SystemExit) as error:  # code of the user
        raise BadInput(f"{call} fails: {describe(error)}") from error


def _require(kind: type, attributes: set[str], contract: type, role: str) -> None:
    names = {name for name in (*vars(contract), *contract.__annotations__) if not name.startswith("_")}
    missing = sorted(name for name in names if name not in attributes and not hasattr(kind, name))
    if missing:
        raise BadInput(
            f"{kind.__name__} lacks {', '.join(missing)}, which {role} needs; see {contract.__name__} in "
            f"{contract.__module__}."
        )
