"""Construction of Gymnasium envs from a registered id or from a class or function in a user's module."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from troop.core.config import suggest
from troop.core.errors import BadInput, SetupProblem, TroopError
from troop.core.user_code import describe, import_module, is_fully_allowed, return_annotation, split
from troop.envs.settings import Setting
from troop.envs.unknown_env import unknown_env


@dataclass(frozen=True)
class EnvConstructor:
    """Builds one env per call; sent to other processes by AsyncVectorEnv, so it holds no live objects."""

    id: str
    settings: tuple[Setting, ...]

    def __call__(self) -> Any:  # noqa: ANN401 - a gymnasium.Env
        """Build the env. Raises BadInput if the constructor fails, SetupProblem if a package is missing."""
        import gymnasium

        constructor = find_class_or_function(self.id)
        arguments: dict[str, Any] = dict(self.settings)
        try:
            if constructor is None:
                return gymnasium.make(_registered_id(self.id), **arguments)
            return _require_env(constructor(**arguments), self.id)
        except TroopError:
            raise
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
            raise SetupProblem(f"Env '{self.id}' needs a package that is not installed: {error}") from error
        except (Exception, SystemExit) as error:  # the user's constructor may raise anything
            raise BadInput(f"Env '{self.id}' cannot be built: {describe(error)}") from error


def find_constructor(id: str, settings: tuple[Setting, ...]) -> EnvConstructor:
    """Import the module of `id`, if it names one, and return the constructor of the env.

    Raises BadInput if the module cannot be imported or has no such env.
    """
    find_class_or_function(id)
    return EnvConstructor(id, settings)


def find_class_or_function(id: str) -> Any:  # noqa: ANN401 - a class or function; None for a registered id
    """Return what builds the env `id`: a subclass of gymnasium.Env, a function, or None if it is registered.

    Imports the module that `id` names. Raises BadInput for anything else, before it is called.
    """
    import gymnasium

    if ":" not in id:
        if id not in gymnasium.registry:
            raise unknown_env(id, gymnasium.registry)
        return None
    module_name, name = split(id)
    module = import_module(module_name)
    if name in gymnasium.registry:
        return None
    found = getattr(module, name, None)
    if inspect.isclass(found):
        if not issubclass(found, gymnasium.Env):
            raise BadInput(
                f"'{id}' is a class but no subclass of gymnasium.Env; derive it from gymnasium.Env."
            )
        return found
    if inspect.isfunction(found):
        return found
    classes = [key for key, value in vars(module).items() if isinstance(value, type)]
    similar = suggest(name, [*classes, *gymnasium.registry], 1)
    hint = f"; did you mean '{similar[0]}'?" if similar else "."
    raise BadInput(
        f"Module '{module_name}' neither registers an env '{name}' nor defines a class or function of that "
        f"name{hint}"
    )


def constructor_parameters(id: str) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of the env's constructor, and those of gymnasium.make for a registered id."""
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    constructor = find_class_or_function(id)
    extra: dict[str, inspect.Parameter] = {}
    if constructor is None:
        constructor = gymnasium.spec(_registered_id(id)).entry_point
        constructor = load_env_creator(constructor) if isinstance(constructor, str) else constructor
        make = inspect.signature(gymnasium.make).parameters
        extra = {name: make[name] for name in ("max_episode_steps", "disable_env_checker")}
    return extra | dict(inspect.signature(constructor).parameters)


def check_stored_env(id: str, allow: Iterable[str]) -> None:
    """Raise BadInput unless a run directory may name the env `id`, whose module the user has allowed.

    A function is called only if it is annotated to return a gymnasium.Env, or allowed by its full name:
    otherwise the file could call any function of the module, with any arguments.
    """
    import gymnasium

    if ":" not in id:
        return
    found = find_class_or_function(id)
    if found is None or inspect.isclass(found) or is_fully_allowed(id, allow):
        return
    result = return_annotation(found)
    if not (inspect.isclass(result) and issubclass(result, gymnasium.Env)):
        raise BadInput(
            f"'{id}' is a function that is not annotated to return a gymnasium.Env; annotate it, or allow it "
            f"by its full name with --allow {id}."
        )


def _registered_id(id: str) -> str:
    return split(id)[1] if ":" in id else id


def _require_env(env: Any, id: str) -> Any:  # noqa: ANN401
    import gymnasium

    if not isinstance(env, gymnasium.Env):
        raise BadInput(f"'{id}' returned a {type(env).__name__}; it must return a gymnasium.Env.")
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, gymnasium.Space):
            raise BadInput(
                f"The {name} of env '{id}' is {space!r}; set it to a space of gymnasium.spaces in __init__()."
            )
    return env
