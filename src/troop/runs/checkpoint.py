"""Checkpoints: `ckpt-<env steps>/` folders, complete or absent; the newest valid one wins.

A folder is written under a temporary name, pushed to the disk, read back, and only then renamed; older ones
are removed after that. What is read is never executed: safetensors and JSON, each byte under a SHA-256.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from troop.core.errors import SetupProblem, TrainingFault
from troop.runs import files, manifest, tensors, tree
from troop.runs.manifest import CheckpointError, Part

_NAME = re.compile(r"ckpt-(\d{12,})(?:-(\d{1,6}))?")
_TEMPORARY = ".tmp"
_SLACK = 1 << 20  # bytes for folders, manifest and rounding to blocks


@dataclass(frozen=True)
class Loaded:
    """A checkpoint as it was saved, and what was passed over to get to it, each with the reason."""

    state: dict[str, Any]
    info: dict[str, Any]
    path: Path
    skipped: list[str] = field(default_factory=list)


def save(
    folder: Path,
    state: dict[str, object],
    info: dict[str, object],
    keep: int = 3,
    finite: Sequence[str] = (),
) -> Path:
    """Add a checkpoint to `folder` and remove all but the newest `keep` and the newest marked best.

    `state` is nested dicts of tensors, numbers, strings, None, lists and tuples; each top-level key becomes
    a file of its own. `info` holds `env_steps` and whatever else should be readable without the state;
    `best=True` in it keeps this checkpoint until a newer best one. Floating tensors under top-level keys
    that start with one of `finite` must be finite, else TrainingFault and nothing is written.
    """
    found: dict[str, dict[str, Tensor]] = {key: {} for key in state}
    trees = {key: _encoded(key, value, found[key]) for key, value in state.items()}
    _refuse_nonfinite(found, finite)
    env_steps = _env_steps(info)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        _want_space(folder, sum(tensors.file_bytes(part) for part in found.values()))
        path = _write(folder, _unused(folder, env_steps), trees, found, info)
    except OSError as error:
        raise files.disk_problem("save a checkpoint in", folder, error) from error
    _prune(folder, path, max(keep, 1))
    return path


def _encoded(key: object, value: object, found: dict[str, Tensor]) -> Any:  # noqa: ANN401 - JSON
    if not isinstance(key, str):
        raise TypeError(f"A checkpoint's top-level keys are strings, not {key!r}.")
    try:
        return tree.encode(value, found)
    except TypeError as error:
        raise TypeError(f"In {key}: {error}") from error


def _env_steps(info: dict[str, object]) -> int:
    steps = info.get("env_steps")
    if not isinstance(steps, int) or steps < 0:
        raise ValueError("info needs env_steps, a count")
    return steps


def _refuse_nonfinite(found: dict[str, dict[str, Tensor]], prefixes: Sequence[str]) -> None:
    for key, part in found.items():
        if not key.startswith(tuple(prefixes)):
            continue
        for name, tensor in part.items():
            if not (tensor.is_floating_point() or tensor.is_complex()):
                continue
            wide = tensor.float() if tensor.element_size() == 1 else tensor  # fp8 has no isfinite
            if not bool(torch.isfinite(wide).all()):
                raise TrainingFault(
                    f"{key}.{name} is not finite; it was not saved, earlier checkpoints are intact."
                )


def _remove_leftovers(folder: Path) -> None:
    """Temporary folders of saves that were killed; the run's lock says that nobody else is saving."""
    for entry in list(folder.iterdir()):
        if entry.name.startswith("ckpt-") and entry.name.endswith(_TEMPORARY):
            shutil.rmtree(entry, ignore_errors=True)


def _want_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size + _SLACK:
        raise SetupProblem(
            f"Could not save a checkpoint in {folder}: it needs {size + _SLACK} bytes and {free} are free; "
            "free some space or choose another --run."
        )


def _unused(folder: Path, env_steps: int) -> str:
    """Find a name: a second checkpoint at one step stands beside the first, as replacing could lose both."""
    taken = [number for steps, number, _ in _candidates(folder) if steps == env_steps]
    name = f"ckpt-{env_steps:012d}"
    return f"{name}-{max(taken) + 1}" if taken else name


def _write(
    folder: Path,
    name: str,
    trees: dict[str, Any],
    found: dict[str, dict[str, Tensor]],
    info: dict[str, object],
) -> Path:
    temporary, path = folder / (name + _TEMPORARY), folder / name
    try:
        os.mkdir(temporary)
        parts: dict[str, Part] = {}
        for key, part in found.items():
            file = _file_name(key, len(parts)) if part else None
            size, digest = tensors.write(temporary / file, part) if file else (0, "")
            parts[key] = Part(trees[key], file, size, digest)
        manifest.write(temporary, parts, tree.encode(info, {}, "info"), _versions())
        files.sync_folder(temporary)
        _verify(temporary)
        os.rename(temporary, path)
        files.sync_folder(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return path


def _file_name(key: str, index: int) -> str:
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", key)[:60]
    return f"{plain}.safetensors" if plain == key else f"{plain}.{index}.safetensors"


def _verify(folder: Path) -> None:
    try:
        for part in manifest.read(folder).parts.values():
            manifest.check_file(folder, part)
    except CheckpointError as reason:
        raise SetupProblem(
            f"The checkpoint just written in {folder.parent} reads back wrong ({reason}); check the disk."
        ) from reason


def _versions() -> dict[str, str]:
    try:
        troop = metadata.version("trooprl")
    except metadata.PackageNotFoundError:
        troop = "unknown"
    return {"troop": troop, "torch": torch.__version__, "python": platform.python_version()}


def _candidates(folder: Path) -> list[tuple[int, int, Path]]:
    """Everything named like a checkpoint, newest first: by steps, not by clocks, which may jump."""
    try:
        matches = [(_NAME.fullmatch(entry.name), entry) for entry in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise files.disk_problem("read", folder, error) from error
    found = [(int(match[1]), int(match[2] or 1), entry) for match, entry in matches if match]
    return sorted(found, reverse=True)


def _prune(folder: Path, saved: Path, keep: int) -> None:
    """Damaged ones take no place among those kept; what cannot be removed is left for the next time."""
    kept, best_kept = 0, False
    for _, _, path in _candidates(folder):
        try:
            best = manifest.read(path).info.get("best") is True
        except CheckpointError:
            if kept >= keep:
                _remove(path)
            continue
        newest_best = best and not best_kept
        best_kept = best_kept or best
        if path != saved and kept >= keep and not newest_best:
            _remove(path)
        elif path == saved or kept < keep:
            kept += 1


def _remove(path: Path) -> None:
    """Out of sight first: a removal that is cut short must not leave half a checkpoint behind."""
    try:
        hidden = path.with_name(path.name + _TEMPORARY)
        os.rename(path, hidden)
        shutil.rmtree(hidden, ignore_errors=True)
    except OSError:
        return


def load_newest(folder: Path) -> Loaded | None:
    """Load the newest valid checkpoint; None if `folder` has none, SetupProblem if all are damaged."""
    return _newest(folder, dict)


def load_part(folder: Path, key: str) -> Loaded | None:
    """Load as `load_newest` does, but only this top-level key: no other file is read or checked."""

    def only(parts: dict[str, Part]) -> dict[str, Part]:
        if key not in parts:
            raise CheckpointError(f"it has no {key!r}")
        return {key: parts[key]}

    return _newest(folder, only)


def load_parts(folder: Path, prefixes: Sequence[str]) -> Loaded | None:
    """Load as `load_newest` does, but only keys that begin so: no other file is read or checked."""
    begins = tuple(prefixes)
    return _newest(folder, lambda parts: {key: part for key, part in parts.items() if key.startswith(begins)})


def _newest(folder: Path, choose: Callable[[dict[str, Part]], dict[str, Part]]) -> Loaded | None:
    skipped: list[str] = []
    for _, _, path in _candidates(folder):
        try:
            said = manifest.read(path)
            wanted = choose(said.parts)
            for part in wanted.values():  # all hashes before the first big allocation
                manifest.check_file(path, part)
            state = {name: manifest.load(path, part) for name, part in wanted.items()}
            return Loaded(state, said.info, path, skipped)
        except CheckpointError as reason:
            skipped.append(f"{path.name}: {reason}")
    if skipped:
        raise SetupProblem(
            f"No checkpoint in {folder} is valid ({'; '.join(skipped)}); restore one or start a new run."
        )
    return None
