"""The manifest of a checkpoint: its contents and the hashes of its files.

The file is JSON whose first line contains the SHA-256 of the rest, so every byte is covered. The content may
be hostile and is checked before it is used.
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
_MAX_BYTES = 64 << 20  # of manifest.json; usually some kB
_FILE = re.compile(r"[A-Za-z0-9_-]{0,100}(\.[0-9]{1,6})?\.safetensors")
_HASH = re.compile(r"[0-9a-f]{64}")
_HEAD, _MIDDLE, _TAIL = b'{"sha256": "', b'",\n"manifest": ', b"}\n"


class CheckpointError(Exception):
    """The reason why a checkpoint must not be loaded."""


@dataclass(frozen=True)
class CheckpointPart:
    """One top-level key of the state: its structure, and the file of its tensors if it has any."""

    tree: Any
    file: str | None
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json, checked for well-formedness."""

    info: dict[str, Any]
    parts: dict[str, CheckpointPart]


def write(folder: Path, parts: dict[str, CheckpointPart], info: object, versions: dict[str, str]) -> None:
    """Write the manifest to `folder`, as the last file."""
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
    """Read the manifest of a checkpoint; CheckpointError with the reason if it is not valid."""
    if folder.is_symlink() or not folder.is_dir():
        raise CheckpointError("it is not a plain folder")
    try:
        with files.open_regular(folder / NAME) as file:
            if os.fstat(file.fileno()).st_size > _MAX_BYTES:
                raise CheckpointError(f"{NAME} is too large")
            content = file.read(_MAX_BYTES)
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
        raise CheckpointError(f"its format is {str(body['format'])[:20]}, not {FORMAT}")
    info = tree.decode(body["info"], _no_tensor)
    if not isinstance(info, dict):
        raise CheckpointError(f"{NAME} is malformed (info)")
    return Manifest(info, {key: _part(entry) for key, entry in body["parts"].items()})


def _part(entry: dict[str, Any]) -> CheckpointPart:
    part = CheckpointPart(entry["tree"], entry["file"], entry["bytes"], entry["sha256"])
    if part.file is not None:
        if not (isinstance(part.file, str) and _FILE.fullmatch(part.file)):
            raise CheckpointError(f"{NAME} has a forbidden file name: {str(part.file)[:80]!r}")
        if (
            type(part.bytes) is not int
            or not isinstance(part.sha256, str)
            or not _HASH.fullmatch(part.sha256)
        ):
            raise CheckpointError(f"{NAME} has no size and hash for {part.file}")
    return part


def _no_tensor(name: str, dtype: str, shape: list[int]) -> Tensor:
    raise ValueError("a tensor is not allowed here")


def check_file(folder: Path, part: CheckpointPart) -> None:
    """Raise CheckpointError unless the file of the part has the size and the hash in the manifest."""
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


def load(folder: Path, part: CheckpointPart) -> object:
    """Decode the value of a part after `check_file`; CheckpointError if it cannot be decoded."""
    try:
        read_tensor = _no_tensor if part.file is None else tensors.TensorFile(folder / part.file).read
        return tree.decode(part.tree, read_tensor)
    except Exception as error:  # a hostile file may raise any error of any library; each means "not valid"
        raise CheckpointError(
            f"{part.file or NAME} cannot be decoded ({type(error).__name__}: {error})"
        ) from error
