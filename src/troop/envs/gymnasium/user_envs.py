"""Construction of Gymnasium envs from a registered id or from a class or function in a user's module."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from troop.core.config import suggest
from troop.core.errors import BadInput, SetupProblem, TroopError
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

        module_name, colon, name = self.id.partition(":")
        module = _import(module_name) if colon else None
        arguments: dict[str, Any] = dict(self.settings)
        try:
            if (name if colon else self.id) in gymnasium.registry:
                return gymnasium.make(name if colon else self.id, **arguments)
            if module is not None and callable(constructor := getattr(module, name, None)):
                return _require_env(constructor(**arguments), self.id)
        except TroopError:
            raise
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
            raise SetupProblem(f"Env '{self.id}' needs a package that is not installed: {error}") from error
        except Exception as error:  # the user's constructor may raise anything
            raise BadInput(f"Env '{self.id}' cannot be built: {_describe(error)}") from error
        raise _unknown(self.id, module)


def find_constructor(id: str, settings: tuple[Setting, ...]) -> EnvConstructor:
    """Import the module of `id`, if it names one, and return the constructor of the env.

    Raises BadInput if the module cannot be imported or has no such env.
    """
    import gymnasium

    module_name, colon, name = id.partition(":")
    module = _import(module_name) if colon else None
    if (name if colon else id) not in gymnasium.registry and not callable(getattr(module, name, None)):
        raise _unknown(id, module)
    return EnvConstructor(id, settings)


def _require_env(env: Any, id: str) -> Any:  # noqa: ANN401
    import gymnasium

    if not isinstance(env, gymnasium.Env):
        raise BadInput(f"'{id}' returned a {type(env).__name__}; it must return a gymnasium.Env.")
    return env


def _import(name: str) -> ModuleType:
    directory = os.getcwd()
    if directory not in sys.path:  # as with `python -m`, modules in the working directory can be imported
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise BadInput(
                f"There is no module '{name}' in '{directory}' or among the installed packages."
            ) from error
        raise BadInput(f"Module '{name}' cannot be imported: {_describe(error)}") from error
    except Exception as error:  # the user's module may raise anything
        raise BadInput(f"Module '{name}' cannot be imported: {_describe(error)}") from error


def _describe(error: BaseException) -> str:
    """Return type, message, file and line of an error of the user's code."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})."
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    location = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{location}."


def _unknown(id: str, module: ModuleType | None) -> BadInput:
    import gymnasium

    if module is None:
        return unknown_env(id, gymnasium.registry)
    name = id.partition(":")[2]
    classes = [key for key, value in vars(module).items() if isinstance(value, type)]
    similar = suggest(name, [*classes, *gymnasium.registry], 1)
    hint = f"; did you mean '{similar[0]}'?" if similar else "."
    return BadInput(
        f"Module '{module.__name__}' neither registers an env '{name}' nor defines a class of that name{hint}"
    )
