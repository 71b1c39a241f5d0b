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
GLOSSARY = {  # fields whose meaning is the same everywhere and needs no docstring in the code
    "id": "Name of the env.",
    "envs": "Number of envs that step together; `--envs` sets it too.",
    "settings": 'Options of the env, such as ("push_enable", False).',
    "autoreset": "How an env is reset after an episode; all modes give the same transitions.",
    "limit": "Length of an episode in steps.",
    "gamma": "Discount factor.",
    "n_step": "Steps of reward before the bootstrap.",
    "critics": "Number of critics.",
    "v_min": "Lowest atom of the categorical critics.",
    "v_max": "Highest atom of the categorical critics.",
    "std_min": "Smallest standard deviation of the exploration noise.",
    "std_max": "Largest standard deviation of the exploration noise.",
    "log_std_min": "Lower bound of the log standard deviation.",
    "log_std_max": "Upper bound of the log standard deviation.",
    "normalize_observations": "Normalize observations by their running mean and standard deviation.",
    "actor_hidden": "Widths of the actor's hidden layers.",
    "critic_hidden": "Widths of the critics' hidden layers.",
    "activation": "Activation function.",
    "actor_lr": "Learning rate of the actor.",
    "critic_lr": "Learning rate of the critics.",
    "lr": "Learning rate.",
    "eps": "Constant added to the denominator.",
    "loss": "Loss of the TD error.",
    "optimizer": "Optimizer.",
    "weight_decay": "Decoupled weight decay; 0: none.",
    "epsilon_start": "Initial epsilon.",
    "epsilon_end": "Final epsilon.",
    "atoms": "Number of atoms of the value distribution.",
    "status": "`running`, `done`, `stopped` (resumable) or `failed`.",
    "return_mean": "Mean return of the last evaluation; null before the first.",
    "return_std": "Its standard deviation over episodes.",
    "env_steps": "Env steps since the start of the run.",
    "updates": "Updates since the start of the run.",
    "episodes": "Training episodes that ended.",
    "env_steps_per_s": "Env steps per second of training.",
    "updates_per_s": "Updates per second of training.",
    "target_reached_s": "Training time until the target was reached; null if it was not.",
    "restarts": "Hosts that were restarted.",
    "recipe": "Name of the recipe.",
    "env": "The env.",
    "seed": "Seed.",
    "target": "Return that ends the run.",
    "evaluation_s": "Time spent on evaluation and checkpoints.",
    "env_faults": "Rows with NaN or infinite values.",
    "skipped_updates": "Updates skipped for a non-finite loss or gradient.",
    "algorithm": "The algorithm.",
    "system": "The system.",
    "engine": "The engine.",
    "until": "When the run ends.",
    "evaluation": "When and how the policy is evaluated.",
    "device": "Device of the learner.",
    "deterministic": "No overlap, deterministic kernels.",
}


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
            texts.get(field.name) or GLOSSARY.get(field.name, ""),
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
    return ", ".join(
        f"{signs[key]} {_number(metadata[key])}" for key in signs if metadata.get(key) is not None
    )


def _number(x: float) -> str:
    return f"{x:,.0f}" if x == int(x) and abs(x) >= 10_000 else f"{x:g}"


def type_text(hint: Any) -> str:  # noqa: ANN401 - an annotation
    """Return the type of a setting in words a user of the command line understands."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " \\| ".join(str(part) for part in parts).replace("\\|", "|")
    if origin in (Union, types.UnionType):
        return " or ".join(type_text(part) for part in parts if part is not type(None))
    if origin is tuple:
        return "pairs, from Python" if get_origin(parts[0]) is tuple else f"{type_text(parts[0])} ..."
    names = {bool: "switch", int: "integer", float: "number", str: "text"}
    if hint in names:
        return names[hint]
    if dataclasses.is_dataclass(hint):
        return hint.__name__  # type: ignore[union-attr]
    return getattr(hint, "__name__", str(hint))
