"""Tensors to and from one safetensors file.

The writer is our own: the library's wants every tensor contiguous, unshared and on the CPU at once, which
for a replay of several GB is a second copy; here one tensor at a time is brought over, hashed and written.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

_CHUNK = 16 << 20
_CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
_OTHERS = [torch.complex128, torch.complex64, torch.complex32, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in [*_CODES, *_OTHERS]}


def file_bytes(tensors: Mapping[str, Tensor]) -> int:
    """About how many bytes `write` will need, never less."""
    return sum(t.numel() * t.element_size() + len(name) * 6 + 400 for name, t in tensors.items()) + 64


def write(path: Path, tensors: Mapping[str, Tensor]) -> tuple[int, str]:
    """Write the file through to the disk; its size and SHA-256."""
    if sys.byteorder != "little":
        raise NotImplementedError("Checkpoints are written on little-endian machines only.")
    # Widest first, so that every tensor is aligned in the file, as the library itself does.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    digest, written = hashlib.sha256(), 0
    with open(path, "wb") as file:
        written += _put(file, digest, memoryview(_header(ordered)))
        for _, tensor in ordered:
            written += _put(file, digest, _raw(tensor))
        file.flush()
        os.fsync(file.fileno())
    return written, digest.hexdigest()


def _header(ordered: list[tuple[str, Tensor]]) -> bytes:
    entries, offset = {}, 0
    for name, tensor in ordered:
        size = tensor.numel() * tensor.element_size()
        code = _CODES.get(tensor.dtype)
        shape = [size] if code is None else list(tensor.shape)  # dtypes unknown to the format travel as bytes
        entries[name] = {"dtype": code or "U8", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _raw(tensor: Tensor) -> memoryview:
    plain = tensor.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy().data


def _put(file: BinaryIO, digest: hashlib._Hash, content: memoryview) -> int:
    for start in range(0, len(content), _CHUNK):
        chunk = content[start : start + _CHUNK]
        digest.update(chunk)
        file.write(chunk)
    return len(content)


def open_regular(path: Path) -> BufferedReader:
    """Open a plain file for reading; OSError on links, ValueError on pipes and other surprises."""
    file = open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")  # noqa: SIM115 - returned
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError("is not a plain file")
    return file


def verify(path: Path, size: int, sha256: str) -> None:
    """ValueError or OSError unless the file is a plain one of this size and hash."""
    with open_regular(path) as file:
        found = os.fstat(file.fileno()).st_size
        if found != size:
            raise ValueError(f"has {found} bytes instead of {size}")
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise ValueError("does not match its SHA-256")


class Reader:
    """The tensors of one file, copied out one by one."""

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        self._file: Any = safe_open(str(path), framework="pt", device="cpu")

    def take(self, name: str, dtype: str, shape: list[int]) -> Tensor:
        """Copy the tensor to memory of its own; ValueError if it is not of this dtype and shape."""
        wanted = _DTYPES.get(dtype)
        if wanted is None:
            raise ValueError(f"holds a tensor of unknown dtype {dtype[:20]!r}")
        # The library's tensors are views of the mapped file: a copy stays good whatever happens to it.
        tensor: Tensor = self._file.get_tensor(name).clone()
        if wanted not in _CODES and tensor.dtype == torch.uint8:
            tensor = tensor.view(wanted).reshape(shape)
        if tensor.dtype != wanted or list(tensor.shape) != shape:
            raise ValueError(f"holds {name[:80]!r} with another dtype or shape than the manifest says")
        return tensor
