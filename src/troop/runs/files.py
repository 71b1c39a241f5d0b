"""Atomic writes of small files, and disk errors as one sentence."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

from troop.core.errors import SetupProblem

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_WRITABLE = {errno.EROFS, errno.EACCES, errno.EPERM}
_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}


def disk_problem(action: str, path: Path, error: OSError) -> SetupProblem:
    """A SetupProblem for an OSError during `action` (such as "write") at `path`, with a cure."""
    if error.errno in _DISK_FULL:
        cure = "the disk is full: free some space or choose another --run"
    elif error.errno in _NOT_WRITABLE:
        cure = "it is not writable: choose a writable --run"
    elif error.errno in _MISSING:
        cure = "the directory does not exist: choose another --run"
    else:
        cure = f"{error.strerror or error}: check the disk or choose another --run"
    return SetupProblem(f"Could not {action} {path}: {cure}.")


def sync_folder(folder: Path) -> None:
    """Flush the directory entries of `folder` to the disk, so that they survive a power failure."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path` and flush it to the disk."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, value: object) -> None:
    """Replace `path` atomically by `value` as JSON: readers see the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            write_bytes(temporary, json.dumps(value, indent=2, allow_nan=False).encode() + b"\n")
            os.replace(temporary, path)
            sync_folder(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise disk_problem("write", path, error) from error


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in `path`; OSError if it cannot be read, ValueError if it is no JSON object."""
    try:
        value = json.loads(path.read_bytes())
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value
