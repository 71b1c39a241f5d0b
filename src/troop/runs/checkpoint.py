"""Checkpoints: folders `ckpt-<env steps>/`, each complete or absent; the newest valid one is loaded.

A checkpoint is written to a temporary folder, flushed to the disk, read back and only then renamed; older
checkpoints are removed after that. The files are safetensors and JSON, so loading never executes code, and
every byte is covered by a SHA-256.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from troop.core.errors import SetupProblem, TrainingFault
from troop.runs import files, manifest, tensors, tree
from troop.runs.manifest import CheckpointError, CheckpointPart

Parts = dict[str, CheckpointPart]
_NAME = re.compile(r"ckpt-(\d{12,})(?:-(\d{1,6}))?")
_TEMPORARY = ".tmp"
_EXTRA_BYTES = 1 << 20  # for folders, the manifest and rounding to disk blocks


@dataclass(frozen=True)
class LoadedCheckpoint:
    """State and info of a checkpoint, and the newer checkpoints that were skipped, each with the reason."""

    state: dict[str, Any]
    info: dict[str, Any]
    path: Path
    skipped: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Name, env steps, time of writing, and the return of the last evaluation before it, if known."""
        steps, value = self.info.get("env_steps"), files.finite_number(self.info.get("return_mean"))
        known = str(steps) if isinstance(steps, int) and 0 <= steps < 2**63 else "unknown"
        written = datetime.fromtimestamp((self.path / manifest.NAME).stat().st_mtime)
        shown = f"{self.path.name} ({known} env steps, written {written:%Y-%m-%d %H:%M:%S}"
        return f"{shown}, not evaluated)" if value is None else f"{shown}, return {value:.6g})"


def save(
    folder: Path,
    state: dict[str, object],
    info: dict[str, object],
    keep: int = 3,
    finite: Sequence[str] = (),
) -> Path:
    """Add a checkpoint to `folder`; remove all but the newest `keep` and the newest one marked as best.

    `state` is nested dicts of tensors, numbers, strings, None, lists and tuples; each top-level key is
    written to its own file. `info` contains `env_steps` and values that are needed without the state;
    `best=True` keeps this checkpoint until there is a newer best one. Returns the folder of the checkpoint.

    Raises TrainingFault, without writing, if a floating-point tensor under a top-level key that starts with
    one of `finite` is not finite, and SetupProblem if the disk is full or fails.
    """
    tensors_of: dict[str, dict[str, Tensor]] = {key: {} for key in state}
    trees = {key: _encode(key, value, tensors_of[key]) for key, value in state.items()}
    _check_finite(tensors_of, finite)
    env_steps = _env_steps(info)
    try:
        if folder.is_symlink():
            raise SetupProblem(f"Could not save a checkpoint in {folder}: it is a link; remove it.")
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        _check_space(folder, sum(tensors.file_bytes(part) for part in tensors_of.values()))
        path = _write(folder, _unused_name(folder, env_steps), trees, tensors_of, info)
    except OSError as error:
        raise files.disk_problem("save a checkpoint in", folder, error) from error
    _prune(folder, path, max(keep, 1))
    return path


def _encode(key: object, value: object, part: dict[str, Tensor]) -> Any:  # noqa: ANN401 - JSON
    if not isinstance(key, str):
        raise TypeError(f"The top-level keys of a checkpoint must be strings, not {key!r}.")
    try:
        return tree.encode(value, part)
    except TypeError as error:
        raise TypeError(f"In {key}: {error}") from error


def _env_steps(info: dict[str, object]) -> int:
    steps = info.get("env_steps")
    if not isinstance(steps, int) or steps < 0:
        raise ValueError("info needs env_steps, a whole number of at least 0")
    return steps


def _check_finite(tensors_of: dict[str, dict[str, Tensor]], prefixes: Sequence[str]) -> None:
    for key, part in tensors_of.items():
        if not key.startswith(tuple(prefixes)):
            continue
        for name, tensor in part.items():
            if not (tensor.is_floating_point() or tensor.is_complex()):
                continue
            wide = tensor.float() if tensor.element_size() == 1 else tensor  # fp8 has no isfinite
            if not bool(torch.isfinite(wide).all()):
                raise TrainingFault(
                    f"{key}.{name} is not finite; no checkpoint was written, earlier ones are intact."
                )


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary folders of saves that were killed; the run's lock excludes another saving process."""
    for entry in list(folder.iterdir()):
        if entry.name.startswith("ckpt-") and entry.name.endswith(_TEMPORARY):
            shutil.rmtree(entry, ignore_errors=True)


def _check_space(folder: Path, size: int) -> None:
    free, needed = shutil.disk_usage(folder).free, size + _EXTRA_BYTES
    if free < needed:
        raise SetupProblem(
            f"Could not save a checkpoint in {folder}: it needs {needed} bytes and {free} are free; "
            "free some space or choose another --run."
        )


def _unused_name(folder: Path, env_steps: int) -> str:
    """A new folder name; a second checkpoint at the same step gets a number, as replacing could lose both."""
    numbers = [number for steps, number, _ in _candidates(folder) if steps == env_steps]
    name = f"ckpt-{env_steps:012d}"
    return f"{name}-{max(numbers) + 1}" if numbers else name


def _write(
    folder: Path,
    name: str,
    trees: dict[str, Any],
    tensors_of: dict[str, dict[str, Tensor]],
    info: dict[str, object],
) -> Path:
    temporary, path = folder / (name + _TEMPORARY), folder / name
    try:
        os.mkdir(temporary)
        parts: Parts = {}
        for key, part in tensors_of.items():
            file = _file_name(key, len(parts)) if part else None
            size, digest = tensors.write(temporary / file, part) if file else (0, "")
            parts[key] = CheckpointPart(trees[key], file, size, digest)
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
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", key)[:60]
    return f"{safe}.safetensors" if safe == key else f"{safe}.{index}.safetensors"


def _verify(folder: Path) -> None:
    try:
        for part in manifest.read(folder).parts.values():
            manifest.check_file(folder, part)
    except CheckpointError as reason:
        raise SetupProblem(
            f"The checkpoint just written to {folder.parent} reads back damaged ({reason}); check the disk."
        ) from reason


def _versions() -> dict[str, str]:
    try:
        troop = metadata.version("trooprl")
    except metadata.PackageNotFoundError:
        troop = "unknown"
    return {"troop": troop, "torch": torch.__version__, "python": platform.python_version()}


def _candidates(folder: Path) -> list[tuple[int, int, Path]]:
    """(env steps, number, path) of folders named like checkpoints, newest first by steps; clocks may jump."""
    if folder.is_symlink():
        raise SetupProblem(f"{folder} is a link; a run directory must not contain links.")
    try:
        matches = [(_NAME.fullmatch(entry.name), entry) for entry in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise files.disk_problem("read", folder, error) from error
    named = [(int(match[1]), int(match[2] or 1), entry) for match, entry in matches if match]
    return sorted(named, reverse=True)


def _prune(folder: Path, saved: Path, keep: int) -> None:
    """Remove old checkpoints; damaged ones do not count as kept, and errors are left to the next call."""
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
    """Rename, then remove: an interrupted removal must not leave an incomplete checkpoint."""
    try:
        if path.is_symlink():
            path.unlink()
            return
        hidden = path.with_name(path.name + _TEMPORARY)
        os.rename(path, hidden)
        shutil.rmtree(hidden, ignore_errors=True)
    except OSError:
        return


def load_newest(folder: Path) -> LoadedCheckpoint | None:
    """Load the newest valid checkpoint; None if `folder` has none; SetupProblem if all are damaged."""
    return _newest(folder, dict)


def load_part(folder: Path, key: str) -> LoadedCheckpoint | None:
    """Like `load_newest`, but only this top-level key; other files are neither read nor checked."""

    def choose(parts: Parts) -> Parts:
        if key not in parts:
            raise CheckpointError(f"it has no {key!r}")
        return {key: parts[key]}

    return _newest(folder, choose)


def load_parts(folder: Path, prefixes: Sequence[str]) -> LoadedCheckpoint | None:
    """Like `load_newest`, but only the top-level keys that start with one of `prefixes`."""
    starts = tuple(prefixes)
    return _newest(folder, lambda parts: {key: part for key, part in parts.items() if key.startswith(starts)})


def _newest(folder: Path, choose: Callable[[Parts], Parts]) -> LoadedCheckpoint | None:
    skipped: list[str] = []
    for _, _, path in _candidates(folder):
        try:
            content = manifest.read(path)
            parts = choose(content.parts)
            for part in parts.values():  # check all hashes before the first large allocation
                manifest.check_file(path, part)
            state = {name: manifest.load(path, part) for name, part in parts.items()}
            return LoadedCheckpoint(state, content.info, path, skipped)
        except CheckpointError as reason:
            skipped.append(f"{path.name}: {reason}")
    if skipped:
        raise SetupProblem(
            f"No checkpoint in {folder} is valid ({'; '.join(skipped)}); restore one or start a new run."
        )
    return None
