"""Configs as JSON: `encode` and its inverse `decode`, and the code outside Troop that they name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from troop.core.errors import BadInput
from troop.core.user_code import describe, is_code_name, load, name_of


def code_fields(kind: type | None) -> tuple[str, ...]:
    """Return the fields of a config whose text may name code as `module:name`: `net`, or what it declares."""
    return getattr(kind, "code_fields", ("net",))


def encode(config: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a config as JSON values; the key `kind` of an object is the class name of the dataclass.

    Of a class outside Troop it is the name by which it is imported, such as `my_package.my_module:MyConfig`.
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        kind = type(config)
        fields = {field.name: encode(getattr(config, field.name)) for field in dataclasses.fields(config)}
        return {"kind": kind.__name__ if kind.__module__.startswith("troop.") else name_of(kind)} | fields
    if isinstance(config, tuple | list):
        return [encode(item) for item in config]
    return config


def decode(value: Any, find_class: Callable[[str], type], path: str = "config") -> Any:  # noqa: ANN401
    """Rebuild a config from the result of `encode`; BadInput with the path of the first invalid value.

    `find_class` maps a kind to its dataclass and raises BadInput for a kind that must not be instantiated.
    """
    if isinstance(value, list):
        return tuple(decode(item, find_class, path) for item in value)
    if not isinstance(value, dict):
        return value
    name = value.get("kind")
    if not isinstance(name, str):
        raise BadInput(f"{path} has no kind.")
    config_class = find_class(name)
    hints, fields = _type_hints(config_class), {field.name for field in dataclasses.fields(config_class)}
    arguments: dict[str, Any] = {}
    for stored, item in value.items():
        if stored == "kind" or stored in getattr(config_class, "removed_fields", ()):
            continue
        key = getattr(config_class, "renamed_fields", {}).get(stored, stored)
        if key not in fields:
            raise BadInput(f"{path}.{key} is unknown; {name} has {', '.join(sorted(fields))}.")
        arguments[key] = decode(item, find_class, f"{path}.{key}")
        if not matches(arguments[key], hints[key]):
            raise BadInput(f"{path}.{key} is {shortened(arguments[key])}, which is not {hints[key]}.")
    try:
        return config_class(**arguments)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(f"{path} is not a valid {name}: {error}.") from error


def _type_hints(kind: type) -> dict[str, Any]:
    try:
        return get_type_hints(kind)
    except Exception as error:  # annotations of a class outside Troop may name anything
        raise BadInput(f"The annotations of {kind.__name__} cannot be read: {describe(error)}") from error


def shortened(value: object) -> str:
    """Return `repr(value)` without the middle of a long one."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:40]}...{text[-30:]}"


def matches(value: Any, hint: Any) -> bool:  # noqa: ANN401
    """Whether a value has the annotated type; protocols and other unknown annotations match everything."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return any(value == arg and type(value) is type(arg) for arg in args)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if len(args) == 2 and args[1] is Ellipsis:
            return all(matches(item, args[0]) for item in value)
        return len(value) == len(args) and all(map(matches, value, args))
    if origin is not None and args:  # a union
        return any(matches(value, arg) for arg in args)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return isinstance(value, hint)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (bool, str, type(None)):
        return isinstance(value, hint)
    return True


def invalid_field(kind: type, values: Mapping[str, Any], limit: float = 2**63) -> str | None:
    """Return the first of `values` that no field of the dataclass `kind` can have; None if all fit.

    A number must be finite and at most `limit` in size: files may hold NaN or integers of any length.
    """
    hints = get_type_hints(kind)
    for name, value in values.items():
        number = isinstance(value, int | float)
        if name not in hints or not matches(value, hints[name]) or (number and not -limit <= value <= limit):
            return name
    return None


def find_outside_class(kind: str) -> type:
    """Import the dataclass that `kind` names; BadInput if it is none. The caller has checked the consent."""
    found = load(kind)
    if not isinstance(found, type) or not dataclasses.is_dataclass(found):
        raise BadInput(f"{kind} is not a dataclass; a config must be a frozen dataclass.")
    return found


def code_names(
    value: Any,  # noqa: ANN401
    classes: Mapping[str, type],
    path: str = "",
) -> list[tuple[str, str]]:
    """Return path and name of all code outside Troop in an encoded config; a path may occur repeatedly.

    Fields of a class outside Troop are unknown before its import: `decoded_code_names` finds them afterwards.
    """
    if isinstance(value, list):
        return [pair for item in value for pair in code_names(item, classes, path)]
    if not isinstance(value, dict):
        return []
    names, kind = [], value.get("kind")
    if isinstance(kind, str) and is_code_name(kind):
        names.append((path, kind))
    fields = code_fields(classes.get(kind)) if isinstance(kind, str) else ()
    for key, item in value.items():
        below = f"{path}.{key}" if path else str(key)
        if key in fields and isinstance(item, str) and is_code_name(item):
            names.append((below, item))
        names += code_names(item, classes, below)
    return names


def setting_values(value: Any, setting: str) -> Iterator[Any]:  # noqa: ANN401
    """Yield the values of all fields of an encoded config that have this name."""
    if isinstance(value, dict):
        if setting in value:
            yield value[setting]
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from setting_values(item, setting)


def decoded_code_names(config: Any, path: str = "") -> Iterator[tuple[str, str]]:  # noqa: ANN401
    """Yield path and value of every field of a config that names code outside Troop."""
    for field in dataclasses.fields(config):
        value, below = getattr(config, field.name), f"{path}.{field.name}" if path else field.name
        if field.name in code_fields(type(config)) and isinstance(value, str) and ":" in value:
            yield below, value
        for item in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(item) and not isinstance(item, type):
                yield from decoded_code_names(item, below)
