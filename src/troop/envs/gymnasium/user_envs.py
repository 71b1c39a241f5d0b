"""Finding the constructor of an env: a registered id, or a module of the user's own."""

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
from troop.envs.envpool.catalog import unknown_id


@dataclass(frozen=True)
class Maker:
    """Builds one env when called, in this process or in another."""

    id: str
    settings: tuple[tuple[str, float | int | bool | str], ...]

    def __call__(self) -> Any:  # noqa: ANN401 - a gymnasium.Env
        """One live env."""
        import gymnasium

        module_name, colon, name = self.id.partition(":")
        module = _import(module_name) if colon else None
        given: dict[str, Any] = dict(self.settings)
        try:
            if (name if colon else self.id) in gymnasium.registry:
                return gymnasium.make(name if colon else self.id, **given)
            if module is not None and callable(constructor := getattr(module, name, None)):
                return _checked(constructor(**given), self.id)
        except TroopError:
            raise
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
            raise SetupProblem(f"Env '{self.id}' needs a package that is not installed: {error}") from error
        except Exception as error:  # the user's constructor may raise anything
            raise BadInput(f"Env '{self.id}' cannot be built: {_where(error)}") from error
        raise _unknown(self.id, module)


def find_maker(id: str, settings: tuple[tuple[str, float | int | bool | str], ...]) -> Maker:
    """The constructor of `id`, its module imported and its name known to exist."""
    import gymnasium

    module_name, colon, name = id.partition(":")
    module = _import(module_name) if colon else None
    if (name if colon else id) not in gymnasium.registry and not callable(getattr(module, name, None)):
        raise _unknown(id, module)
    return Maker(id, settings)


def _checked(env: Any, id: str) -> Any:  # noqa: ANN401
    import gymnasium

    if not isinstance(env, gymnasium.Env):
        raise BadInput(f"'{id}' built a {type(env).__name__}; it must be a gymnasium.Env.")
    return env


def _import(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:  # as `python -m` has it: a module beside the user is found
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise BadInput(
                f"There is no module '{name}' in '{here}' or among the installed packages."
            ) from error
        raise BadInput(f"Module '{name}' cannot be imported: {_where(error)}") from error
    except Exception as error:  # the user's module may raise anything
        raise BadInput(f"Module '{name}' cannot be imported: {_where(error)}") from error


def _where(error: BaseException) -> str:
    """The error with the file and line it came from."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})."
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if "importlib" not in frame.filename]
    place = f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else ""
    return f"{type(error).__name__}: {error}{place}."


def _unknown(id: str, module: ModuleType | None) -> BadInput:
    import gymnasium

    if module is None:
        return unknown_id(id, gymnasium.registry)
    name = id.partition(":")[2]
    classes = [key for key, value in vars(module).items() if isinstance(value, type)]
    close = suggest(name, [*classes, *gymnasium.registry], 1)
    hint = f"; did you mean '{close[0]}'?" if close else "."
    return BadInput(
        f"Module '{module.__name__}' has no env '{name}', neither registered nor as a class{hint}"
    )
