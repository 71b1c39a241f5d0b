"""Small files written whole or not at all, and disk trouble said in one sentence."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

from troop.core.errors import SetupProblem

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EROFS, errno.EACCES, errno.EPERM}
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}


def disk_problem(doing: str, path: Path, error: OSError) -> SetupProblem:
    """Make the sentence for an OSError met while `doing` something at `path`, with its cure."""
    if error.errno in _FULL:
        cure = "the disk is full: free some space or choose another --run"
    elif error.errno in _REFUSED:
        cure = "it is not writable: choose a --run you may write to"
    elif error.errno in _GONE:
        cure = "the directory is not there (any more): choose another --run"
    else:
        cure = f"{error.strerror or error}: check the disk or choose another --run"
    return SetupProblem(f"Could not {doing} {path}: {cure}.")


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes(path: Path, content: bytes) -> None:
    """Create `path` with `content` and push it to the disk."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, value: object) -> None:
    """Replace `path` by `value` as JSON in one step: readers see the old file or the new one."""
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
    """Read the JSON object in `path`; OSError or ValueError if there is none."""
    try:
        value = json.loads(path.read_bytes())
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value
