"""Reference page of flags: every config class with its flags, defaults, bounds and help texts."""

from __future__ import annotations

import dataclasses

from troop import algorithms, engines, envs, systems
from troop_docs.config_fields import ConfigField, config_fields
from troop_docs.markdown import code, table
from troop_docs.recipe_builds import short_flags

SECTIONS: dict[str, tuple[str, tuple[type, ...]]] = {
    "env": ("Environments", (envs.EnvPool, envs.Gymnasium, envs.Toy)),
    "algorithm": (
        "Algorithms",
        (
            algorithms.TD3Config,
            algorithms.SACConfig,
            algorithms.DQNConfig,
            algorithms.C51Config,
            algorithms.RainbowConfig,
        ),
    ),
    "system": ("Systems", (systems.Sync, systems.Apex, systems.Gorila, systems.PQL)),
    "evaluation": ("Evaluation", (systems.Evaluation,)),
    "engine": ("Engines", (engines.Inline, engines.Processes, engines.Ray)),
}


def page() -> str:
    """Return one section for each axis, one table for each config class."""
    lines = []
    for part, (title, kinds) in SECTIONS.items():
        lines.append(f"## {title}\n")
        for kind in kinds:
            lines.append(f"### {kind.__name__}\n\n{_summary(kind)}\n")
            lines.append(table(["flag", "type", "default", "range", "meaning"], _rows(kind, f"{part}.")))
    return "\n".join(lines)


def _summary(kind: type) -> str:
    return (kind.__doc__ or "").strip().split("\n\n")[0]


def _rows(kind: type, path: str) -> list[list[str]]:
    rows = []
    for field in config_fields(kind):
        flag = f"{path}{field.name}".replace("_", "-")
        if field.nested is not None and dataclasses.is_dataclass(field.nested):
            rows += _nested_rows(kind, field, f"{flag}.")
        else:
            rows.append(_row(flag, field))
    return rows


def _nested_rows(kind: type, field: ConfigField, path: str) -> list[list[str]]:
    """Rows of a nested config, with the defaults that the outer class gives it."""
    assert field.nested is not None
    given = _nested_default(kind, field.name)
    rows = []
    for inner in config_fields(field.nested):
        if given is not None:
            from troop_docs.markdown import value

            inner = dataclasses.replace(inner, default=value(getattr(given, inner.name)))
        rows.append(_row(f"{path}{inner.name}".replace("_", "-"), inner))
    return rows


def _nested_default(kind: type, name: str) -> object | None:
    for field in dataclasses.fields(kind):
        if field.name == name and field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        if field.name == name and field.default is not dataclasses.MISSING:
            return field.default
    return None


def _row(flag: str, field: ConfigField) -> list[str]:
    short = short_flags().get(flag, flag)
    names = code(f"--{flag}") + (f" or {code(f'--{short}')}" if short != flag else "")
    return [names, field.kind, code(field.default), field.bounds, field.help]
