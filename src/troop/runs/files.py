"""Atomic writes and reads of small files, which never follow links; disk errors as one sentence."""

from __future__ import annotations

import errno
import json
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

from troop.core.errors import BadInput, SetupProblem

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_WRITABLE = {errno.EROFS, errno.EACCES, errno.EPERM}
_MAX_JSON_BYTES = 64 << 20  # of files that are usually some kB
_MAX_NUMBER = 1e100
_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}


def disk_problem(action: str, path: Path, error: OSError) -> SetupProblem:
    """A SetupProblem for an OSError during `action` (such as "write") at `path`, with a cure."""
    if error.errno in _DISK_FULL:
        cure = "the disk is full: free some space or choose another --run"
    elif error.errno in _NOT_WRITABLE:
        cure = "it is not writable: choose a writable --run"
    elif error.errno == errno.ELOOP:
        cure = "it is a link: remove it or choose another --run"
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
    """Write `content` to the new file `path` and flush it to the disk; OSError if `path` exists."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Replace `path` atomically: readers see the old file or the new one; a link is replaced, not followed.

    Raises SetupProblem if the disk fails.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            temporary.unlink(missing_ok=True)  # of a killed process with the same id, or a link
            write_bytes(temporary, content)
            os.replace(temporary, path)
            sync_folder(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise disk_problem("write", path, error) from error


def write_json(path: Path, value: object) -> None:
    """Replace `path` atomically by `value` as JSON; SetupProblem if the disk fails."""
    replace_file(path, json.dumps(value, indent=2, allow_nan=False).encode() + b"\n")


def write_text(path: Path, text: str) -> None:
    """Replace `path` atomically by `text`; SetupProblem if the disk fails."""
    replace_file(path, text.encode())


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; OSError for a link, ValueError for a pipe or another special file."""
    file = open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")  # noqa: SIM115 - returned
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError("is not a regular file")
    return file


def reject_links(root: Path, *names: str) -> None:
    """Raise BadInput if an entry of the directory `root`, or of its folders `names`, is a link.

    Writing through a link would change files outside of the directory.
    """
    for folder in (root, *(root / name for name in names)):
        try:
            links = [entry.name for entry in os.scandir(folder) if entry.is_symlink()]
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise disk_problem("read", folder, error) from error
        if links:
            raise BadInput(
                f"{folder / min(links)} is a link; a run directory must not contain links: remove it."
            )


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in `path`; OSError if it cannot be read, ValueError if it is no JSON object."""
    try:
        with open_regular(path) as file:
            content = file.read(_MAX_JSON_BYTES + 1)
        if len(content) > _MAX_JSON_BYTES:
            raise ValueError(f"it is larger than {_MAX_JSON_BYTES >> 20} MB")
        value = json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def finite_number(value: object) -> float | None:
    """Return a JSON value as a float; None if it is no number, not finite, or larger than 1e100.

    Statistics and figures of larger numbers would overflow.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -_MAX_NUMBER <= value <= _MAX_NUMBER else None
