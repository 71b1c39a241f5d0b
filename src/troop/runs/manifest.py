"""The manifest of one checkpoint: what it holds, and the hashes by which damage is found.

The file is JSON whose first line carries the SHA-256 of the rest, so that no byte of it is unguarded.
What is read here may have been written by anyone: nothing is believed before it is checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from troop.runs import files, tensors, tree

NAME = "manifest.json"
FORMAT = 1
_LARGEST = 64 << 20  # bytes; ours are some kB
_FILE = re.compile(r"[A-Za-z0-9_-]{0,100}(\.[0-9]{1,6})?\.safetensors")
_HASH = re.compile(r"[0-9a-f]{64}")
_HEAD, _MIDDLE, _TAIL = b'{"sha256": "', b'",\n"manifest": ', b"}\n"


class CheckpointError(Exception):
    """A checkpoint that must not be loaded; says why."""


@dataclass(frozen=True)
class Part:
    """One top-level key of the state: its tree, and the file of its tensors if it has any."""

    tree: Any
    file: str | None
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself, checked for form."""

    info: dict[str, Any]
    parts: dict[str, Part]


def write(folder: Path, parts: dict[str, Part], info: object, versions: dict[str, str]) -> None:
    """Put the manifest into `folder`; the last file to be written."""
    body = {
        "format": FORMAT,
        "info": info,
        "versions": versions,
        "parts": {key: vars(part) for key, part in parts.items()},
    }
    text = json.dumps(body, allow_nan=False).encode()
    files.write_bytes(folder / NAME, _seal(text))


def _seal(text: bytes) -> bytes:
    return _HEAD + hashlib.sha256(text).hexdigest().encode() + _MIDDLE + text + _TAIL


def read(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint; CheckpointError, with the reason, if it cannot be trusted."""
    if folder.is_symlink() or not folder.is_dir():
        raise CheckpointError("it is not a plain folder")
    try:
        with tensors.open_regular(folder / NAME) as file:
            if os.fstat(file.fileno()).st_size > _LARGEST:
                raise CheckpointError(f"{NAME} is too large")
            content = file.read(_LARGEST)
    except FileNotFoundError:
        raise CheckpointError(f"{NAME} is missing") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{NAME} cannot be read ({error})") from error
    text = content[len(_HEAD) + 64 + len(_MIDDLE) : -len(_TAIL)]
    if content != _seal(text):
        raise CheckpointError(f"{NAME} does not match its own SHA-256")
    try:
        return _parse(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{NAME} is malformed ({type(error).__name__})") from error


def _parse(body: dict[str, Any]) -> Manifest:
    if body["format"] != FORMAT:
        raise CheckpointError(f"its format {str(body['format'])[:20]} is not the known one ({FORMAT})")
    info = tree.decode(body["info"], _no_tensor)
    if not isinstance(info, dict):
        raise CheckpointError(f"{NAME} is malformed (info)")
    return Manifest(info, {key: _part(entry) for key, entry in body["parts"].items()})


def _part(entry: dict[str, Any]) -> Part:
    part = Part(entry["tree"], entry["file"], entry["bytes"], entry["sha256"])
    if part.file is not None:
        if not (isinstance(part.file, str) and _FILE.fullmatch(part.file)):
            raise CheckpointError(f"{NAME} names a file it may not: {str(part.file)[:80]!r}")
        if (
            type(part.bytes) is not int
            or not isinstance(part.sha256, str)
            or not _HASH.fullmatch(part.sha256)
        ):
            raise CheckpointError(f"{NAME} has no size and hash for {part.file}")
    return part


def _no_tensor(name: str, dtype: str, shape: list[int]) -> Tensor:
    raise ValueError("a tensor where none may be")


def check_file(folder: Path, part: Part) -> None:
    """CheckpointError unless the part's file is there with the size and the hash of the manifest."""
    if part.file is None:
        return
    try:
        tensors.verify(folder / part.file, part.bytes, part.sha256)
    except FileNotFoundError:
        raise CheckpointError(f"{part.file} is missing") from None
    except OSError as error:
        raise CheckpointError(f"{part.file} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise CheckpointError(f"{part.file} {error}") from error


def load(folder: Path, part: Part) -> object:
    """Decode the part's value, its file having been checked; CheckpointError if it cannot be decoded."""
    try:
        take = _no_tensor if part.file is None else tensors.Reader(folder / part.file).take
        return tree.decode(part.tree, take)
    except Exception as error:  # a file made to harm may fail in any library: all of it means "not valid"
        raise CheckpointError(
            f"{part.file or NAME} cannot be decoded ({type(error).__name__}: {error})"
        ) from error
