"""Reference page of flags: every config class with its flags, defaults, bounds and help texts."""

from __future__ import annotations

import dataclasses

from troop import algorithms, engines, envs, systems
from troop_docs.config_fields import ConfigField, config_fields
from troop_docs.markdown import code, table, value
from troop_docs.recipe_builds import short_flags

SECTIONS: dict[str, tuple[str, tuple[type, ...]]] = {
    "env": ("Environments", (envs.EnvPool, envs.Gymnasium, envs.Toy)),
    "algorithm": (
        "Algorithms",
        (
            algorithms.TD3Config,
            algorithms.SACConfig,
            algorithms.FlashSACConfig,
            algorithms.TD3GRUConfig,
            algorithms.SACGRUConfig,
            algorithms.DQNConfig,
            algorithms.C51Config,
            algorithms.RainbowConfig,
            algorithms.PPOConfig,
            algorithms.ImpalaConfig,
            algorithms.APPOConfig,
            algorithms.R2D2Config,
            algorithms.UnrealConfig,
        ),
    ),
    "system": (
        "Systems",
        (
            systems.Sync,
            systems.Apex,
            systems.Gorila,
            systems.PQL,
            systems.OnPolicy,
            systems.A3C,
            systems.IMPALA,
            systems.SEED,
            systems.DataParallel,
        ),
    ),
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
            lines.append(table(["flag", "type", "default", "range", "meaning"], rows(kind, f"{part}.")))
    return "\n".join(lines)


def _summary(kind: type) -> str:
    return (kind.__doc__ or "").strip().split("\n\n")[0]


def rows(kind: type, path: str) -> list[list[str]]:
    """Return one row per flag of a config class; nested configs have the defaults of the outer class."""
    found = []
    for field in config_fields(kind):
        flag = f"{path}{field.name}".replace("_", "-")
        if field.nested is None:
            found.append(_row(flag, field))
        else:
            found += _nested_rows(field, _nested_default(kind, field.name), f"{flag}.")
    return found


def _nested_rows(field: ConfigField, default: object, path: str) -> list[list[str]]:
    assert field.nested is not None
    found = []
    for each in config_fields(field.nested):
        flag, own = f"{path}{each.name}".replace("_", "-"), getattr(default, each.name)
        if each.nested is None:
            found.append(_row(flag, dataclasses.replace(each, default=value(own))))
        else:
            found += _nested_rows(each, own, f"{flag}.")
    return found


def _nested_default(kind: type, name: str) -> object:
    (field,) = [field for field in dataclasses.fields(kind) if field.name == name]
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


def _row(flag: str, field: ConfigField) -> list[str]:
    short = short_flags().get(flag, flag)
    names = code(f"--{flag}") + (f" or {code(f'--{short}')}" if short != flag else "")
    return [names, field.kind, code(field.default), field.bounds, field.help]
