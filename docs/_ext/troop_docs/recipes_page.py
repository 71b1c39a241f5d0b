"""Reference page of recipes: their values at the paper's scale and on few cores, against the paper."""

from __future__ import annotations

import dataclasses
from typing import Any

from troop.core.config import flags
from troop.experiment import Experiment
from troop.recipes import RECIPES
from troop_docs.markdown import code, table, value
from troop_docs.paper_values import NO_PAPER, PAPERS, Paper
from troop_docs.recipe_builds import PARTS, build, settings, until

HIDDEN = ("env.id", "env.settings", "env.threads", "env.slim-assets", "engine.threads")
SPELLED = {"env.envs": "envs"}  # settings with a flag of their own


def page() -> str:
    """Return the whole page: an overview and one section for each recipe."""
    rows = [
        [f"[`{name}`](#{name})", recipe.description, code(recipe.default_env), _axes(build(name))]
        for name, recipe in RECIPES.items()
    ]
    overview = table(["recipe", "what it is", "default env", "algorithm, system, engine"], rows)
    return "\n".join([overview, *(section(name) for name in RECIPES)])


def _axes(experiment: Experiment[Any]) -> str:
    names = (type(getattr(experiment, part)).__name__ for part in ("algorithm", "system", "engine"))
    return ", ".join(code(name) for name in names)


def section(name: str) -> str:
    """Return the section of one recipe."""
    small, paper = build(name), PAPERS.get(name)
    lines = [f"## {name}\n", f"{RECIPES[name].description}.\n"]
    lines.append(f"Source: {paper.citation if paper else NO_PAPER[name]}.\n")
    large = build(name, paper.env, paper.device) if paper else None
    lines.append(_table(small, large, paper))
    return "\n".join(lines)


def _table(small: Experiment[Any], large: Experiment[Any] | None, paper: Paper | None) -> str:
    here = settings(small)
    there = settings(large) if large is not None else {}
    shown = [flag for flag in dict.fromkeys([*here, *there]) if flag not in HIDDEN]
    shown = [flag for flag in shown if _interesting(flag, small, large, paper)]
    rows = [[code(f"--{SPELLED.get(flag, flag)}"), *_cells(flag, here, there, paper)] for flag in shown]
    ends = dict.fromkeys([*until(small), *(until(large) if large else {})])
    for end in ends:
        cells = [value(until(experiment).get(end)) for experiment in (large, small) if experiment is not None]
        rows.append([code(f"--{end}"), *(["", *cells, ""] if large else cells)])
    default = f"default ({code(small.env.id)}, CPU)"
    if large is None or paper is None:
        return table(["setting", default], rows)
    device = "GPU" if paper.device != "cpu" else "CPU"
    return table(["setting", "paper", f"{code(large.env.id)}, {device}", default, "notes"], rows)


def _cells(flag: str, here: dict[str, Any], there: dict[str, Any], paper: Paper | None) -> list[str]:
    small = value(here[flag]) if flag in here else ""
    if paper is None:
        return [small]
    entry = paper.values.get(flag)
    large = value(there[flag]) if flag in there else ""
    if entry is None:
        return ["", large, small, ""]
    large = entry.by_cores or large
    notes = "; ".join(
        text for text in (entry.note, f"differs: {entry.reason}" if entry.reason else "") if text
    )
    return [value(entry.paper), large, small, notes]


def _interesting(
    flag: str, small: Experiment[Any], large: Experiment[Any] | None, paper: Paper | None
) -> bool:
    """Whether the paper names the setting or a build sets it to something else than its class."""
    if paper is not None and flag in paper.values:
        return True
    return any(
        flag in settings(experiment) and settings(experiment)[flag] != _class_default(experiment, flag)
        for experiment in (small, large)
        if experiment is not None
    )


def _class_default(experiment: Experiment[Any], flag: str) -> Any:  # noqa: ANN401 - any setting
    part = flag.split(".")[0]
    assert part in PARTS
    kind = type(getattr(experiment, part))
    missing = [field.name for field in dataclasses.fields(kind) if _required(field)]
    plain = kind(**{name: getattr(getattr(experiment, part), name) for name in missing})
    return dict(flags(plain, f"{part}."))[flag]


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
