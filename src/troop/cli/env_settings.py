"""Arguments of a Gymnasium env on the command line: `--env.limit 50`, `--env.sparse`, `--env.goal None`."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from troop.core.config import suggest
from troop.core.errors import BadInput

PREFIX = "--env."
_CONSTANTS = {"None": None, "True": True, "true": True, "False": False, "false": False}


def take_env_settings(env: Any, argv: list[str]) -> tuple[Any, list[str]]:  # noqa: ANN401 - an EnvConfig
    """Return the env with the arguments in `argv` that are no fields of its config, and the other words.

    Raises BadInput if the constructor of the env has no such argument.
    """
    from troop.envs import Gymnasium

    if not isinstance(env, Gymnasium):
        return env, argv
    fields = {field.name for field in dataclasses.fields(env)}
    settings, rest = dict(env.settings), []
    words = list(reversed(argv))
    while words:
        word = words.pop()
        flag, equals, text = word.partition("=")
        name = flag.removeprefix(PREFIX).replace("-", "_")
        if not word.startswith(PREFIX) or name in fields:
            rest.append(word)
            continue
        parameters = _parameters(env.id)
        if equals or (words and not words[-1].startswith("--")):
            parameter = _find(name, parameters, flag, env.id)
            settings[name] = _parse(text if equals else words.pop(), parameter)
        else:  # a switch
            negated = name.startswith("no_") and name not in parameters
            name = name.removeprefix("no_") if negated else name
            _find(name, parameters, flag, env.id)
            settings[name] = not negated
    return dataclasses.replace(env, settings=tuple(settings.items())), rest


def _parameters(id: str) -> dict[str, inspect.Parameter | None]:
    """Return the arguments of the env's constructor; the key `*` if it takes any name."""
    from troop.envs.gymnasium.user_envs import constructor_parameters

    found: dict[str, inspect.Parameter | None] = dict(constructor_parameters(id))
    if any(p is not None and p.kind is inspect.Parameter.VAR_KEYWORD for p in found.values()):
        found["*"] = None
    return found


def _find(
    name: str, parameters: dict[str, inspect.Parameter | None], flag: str, id: str
) -> inspect.Parameter | None:
    if name in parameters or "*" in parameters:
        return parameters.get(name)
    similar = suggest(name, parameters, 1)
    known = ", ".join(parameters) or "none"
    hint = f"did you mean {PREFIX}{similar[0]}?" if similar else f"its arguments are: {known}."
    raise BadInput(f"Unknown flag {flag}; env '{id}' has no argument '{name}'; {hint}")


def _parse(text: str, parameter: inspect.Parameter | None) -> int | float | bool | str | None:
    """Return None, a boolean, a number or a text; an argument whose default is a text stays one."""
    if text == "None":
        return None
    if parameter is not None and (isinstance(parameter.default, str) or parameter.annotation in (str, "str")):
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
