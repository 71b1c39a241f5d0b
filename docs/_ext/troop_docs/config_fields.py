"""The fields of a config dataclass: name, type, default, bounds and help text, read from its source."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from troop_docs.markdown import value

MISSING = dataclasses.MISSING


@dataclass(frozen=True)
class ConfigField:
    """One field as the reference shows it."""

    name: str
    kind: str
    default: str
    bounds: str
    help: str
    nested: type | None = None  # the dataclass of a nested config


def config_fields(config: type) -> list[ConfigField]:
    """Return the fields of a dataclass in order, inherited ones first."""
    hints, texts = get_type_hints(config, include_extras=False), help_texts(config)
    return [
        ConfigField(
            field.name,
            type_text(hints[field.name]),
            value(_default(field)),
            bounds_text(field.metadata),
            texts.get(field.name, ""),
            hints[field.name] if dataclasses.is_dataclass(hints[field.name]) else None,
        )
        for field in dataclasses.fields(config)
    ]


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else None


def help_texts(config: type) -> dict[str, str]:
    """Return the string literal or trailing comment of each field, subclasses overriding bases."""
    found: dict[str, str] = {}
    for base in reversed(config.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        source = textwrap.dedent(inspect.getsource(base))
        found |= _literals(source)
    return found


def _literals(source: str) -> dict[str, str]:
    found: dict[str, str] = {}
    lines = source.splitlines()
    body = ast.parse(source).body[0].body  # type: ignore[attr-defined]
    for position, node in enumerate(body):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        after = body[position + 1] if position + 1 < len(body) else None
        if (
            isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            found[node.target.id] = " ".join(after.value.value.split())
        else:
            comment = lines[(node.end_lineno or node.lineno) - 1].partition("  # ")[2]
            if comment and not comment.startswith("noqa"):
                found[node.target.id] = comment.strip()
    return found


def bounds_text(metadata: Any) -> str:  # noqa: ANN401 - a mapping of bounds
    """Return bounds such as `>= 0, < 1`."""
    signs = {"low": ">=", "above": ">", "high": "<=", "below": "<"}
    return ", ".join(f"{signs[key]} {metadata[key]:g}" for key in signs if metadata.get(key) is not None)


def type_text(hint: Any) -> str:  # noqa: ANN401 - an annotation
    """Return the type of a setting in words a user of the command line understands."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " \\| ".join(str(part) for part in parts).replace("\\|", "|")
    if origin in (Union, types.UnionType):
        return " or ".join(type_text(part) for part in parts if part is not type(None))
    if origin is tuple:
        return f"{type_text(parts[0])} ..." if parts else "values"
    names = {bool: "switch", int: "integer", float: "number", str: "text"}
    if hint in names:
        return names[hint]
    if dataclasses.is_dataclass(hint):
        return hint.__name__  # type: ignore[union-attr]
    return getattr(hint, "__name__", str(hint))
