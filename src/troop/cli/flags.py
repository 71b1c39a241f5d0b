"""Names of settings on the command line: every unique end of a dotted path is a flag.

`--batch-size`, `--schedule.batch-size` and `--system.schedule.batch-size` are the same flag as long as no
other setting ends in the same words.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from troop.core.config import flags, suggest
from troop.core.errors import BadInput

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TOP_LEVEL = (
    "env", "envs", "algorithm", "network", "engine", "device", "seed", "minutes", "env-steps", "target",
    "run", "deterministic",
)  # fmt: skip
"""Flags of `troop train` that are not settings of a config; they win over settings of the same name."""
_PASSED_THROUGH = (*TOP_LEVEL, "no-deterministic", "help")
_BOOLEANS = {"true": "True", "false": "False"}


class SettingFlags:
    """The settings of some named configs (`system`, `algorithm`, ...) and the flags that set them."""

    def __init__(self, configs: Mapping[str, DataclassInstance], prog: str) -> None:
        self.values = {
            path: value for name, config in configs.items() for path, value in flags(config, f"{name}.")
        }
        self.auto_switches = {
            path for name, config in configs.items() for path in _auto_switches(config, f"{name}.")
        }
        self.prog = prog

    def matches(self, spelling: str) -> list[str]:
        """The paths that `spelling` may stand for: an exact path, else all paths that end in it."""
        if spelling in self.values:
            return [spelling]
        return [path for path in self.values if path.endswith(f".{spelling}")]

    def shortest(self, path: str) -> str:
        """The shortest end of `path` that names only this setting."""
        words = path.split(".")
        ends = (".".join(words[start:]) for start in range(len(words) - 1, 0, -1))
        return next((end for end in ends if end not in TOP_LEVEL and self.matches(end) == [path]), path)

    def resolve(self, argv: Sequence[str]) -> tuple[list[str], set[str]]:
        """Return `argv` with every setting spelled as `shortest` does, and the paths of these settings.

        A switch that can also be auto gets a value: `--compile` is `--compile=True`, `--no-compile` is
        `--compile=False`. Raise BadInput if a flag is unknown or stands for more than one setting.
        """
        resolved: list[str] = []
        paths: set[str] = set()
        path = ""
        for word, following in itertools.zip_longest(argv, argv[1:]):
            name, equals, value = word.partition("=")
            spelling = name[2:].replace("_", "-")
            if not word.startswith("--"):
                resolved.append(_BOOLEANS.get(word, word) if path in self.auto_switches else word)
                continue
            if spelling not in _PASSED_THROUGH:
                path, negated = self._find(spelling, name)
                paths.add(path)
                spelling = self.shortest(path)
                if path not in self.auto_switches:
                    spelling = _negate(spelling) if negated else spelling
                elif negated or (not equals and (following is None or following.startswith("--"))):
                    equals, value = "=", str(not negated)
                else:
                    value = _BOOLEANS.get(value, value)
            else:
                path = ""
            resolved.append(f"--{spelling}{equals}{value}")
        return resolved, paths

    def _find(self, spelling: str, name: str) -> tuple[str, bool]:
        """The path of the setting, and whether the flag is negated like `--no-overlap`."""
        paths, negated = self.matches(spelling), False
        head, _, last = spelling.rpartition(".")
        if not paths and last.startswith("no-"):
            positive = f"{head}.{last[3:]}" if head else last[3:]
            paths = [
                path
                for path in self.matches(positive)
                if isinstance(self.values[path], bool) or path in self.auto_switches
            ]
            negated = True
        if not paths:
            raise self._unknown(spelling, name)
        if len(paths) > 1:
            spellings = [f"--{self.shortest(path)}" for path in paths]
            raise BadInput(f"{name} is ambiguous; use {', '.join(spellings[:-1])} or {spellings[-1]}.")
        return paths[0], negated

    def _unknown(self, spelling: str, name: str) -> BadInput:
        # A correct last word after a wrong path is most likely what was meant.
        last = spelling.rpartition(".")[2]
        similar = [self.shortest(path) for path in self.values if path.rpartition(".")[2] == last]
        known = dict.fromkeys([*TOP_LEVEL, *map(self.shortest, self.values), *self.values])
        similar = similar or suggest(spelling, known, 1)
        hint = f"did you mean --{similar[0]}?" if similar else f"see `{self.prog} --help`."
        return BadInput(f"Unknown flag {name}; {hint}")

    def annotate(self, config: DataclassInstance, path: str, with_help: bool) -> Any:  # noqa: ANN401
        """Return the values of `config` in a dataclass whose fields tyro names as `shortest` does.

        `path` is the dotted path of the config. Help texts are read from the source, which takes a while.
        """
        import tyro

        kind = type(config)
        hints, docs = get_type_hints(kind), field_docs(kind) if with_help else {}
        fields: list[tuple[str, Any, Any]] = []
        for field in dataclasses.fields(config):
            value, field_path = getattr(config, field.name), f"{path}.{field.name}".replace("_", "-")
            if field_path in self.values:
                name = self.shortest(field_path)
                flag = tyro.conf.arg(name=name, prefix_name=False, help=docs.get(field.name))
                hint: Any = Annotated[hints[field.name], flag]
            else:
                value = self.annotate(value, field_path, with_help)
                hint = type(value)
            fields.append((field.name, hint, dataclasses.field(default=value)))
        annotated = dataclasses.make_dataclass(kind.__name__, fields, frozen=True)
        annotated.__doc__ = kind.__doc__
        return annotated()


def with_values(config: Any, annotated: Any) -> Any:  # noqa: ANN401 - any config
    """Return `config` with the values of `annotated`, which `SettingFlags.annotate` made of such a config."""
    changes = {}
    for field in dataclasses.fields(config):
        old, new = getattr(config, field.name), getattr(annotated, field.name)
        changes[field.name] = with_values(old, new) if dataclasses.is_dataclass(old) else new
    return dataclasses.replace(config, **changes)


def field_docs(kind: type) -> dict[str, str]:
    """The docstring below each field of a dataclass and of its bases, on one line."""
    docs = {}
    for base in reversed([base for base in kind.__mro__ if dataclasses.is_dataclass(base)]):
        definition = _classes(inspect.getfile(base)).get(base.__qualname__)
        for field, text in itertools.pairwise(definition.body if definition else ()):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                    docs[name] = " ".join(doc.split())
    return docs


@functools.cache
def _classes(file: str) -> dict[str, ast.ClassDef]:
    """Return the classes in a source file by their qualified names; parsing it once for all saves time."""
    found: dict[str, ast.ClassDef] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = prefix
            if isinstance(child, ast.ClassDef):
                found[prefix + child.name] = child
                inner = f"{prefix}{child.name}."
            elif isinstance(child, ast.FunctionDef):
                inner = f"{prefix}{child.name}.<locals>."
            if isinstance(child, ast.stmt):
                visit(child, inner)

    visit(ast.parse(Path(file).read_text(encoding="utf-8")), "")
    return found


def _auto_switches(config: DataclassInstance, path: str) -> Iterator[str]:
    """Yield the dotted paths of the fields that are on, off or auto."""
    from troop.core.algorithm import CompileMode  # imports torch

    hints = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), f"{path}{field.name}".replace("_", "-")
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from _auto_switches(value, f"{name}.")
        elif hints[field.name] == CompileMode:
            yield name


def _negate(spelling: str) -> str:
    head, dot, last = spelling.rpartition(".")
    return f"{head}{dot}no-{last}"
