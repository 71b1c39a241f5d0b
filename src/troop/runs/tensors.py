"""Write and read the tensors of one safetensors file.

The writer does not use the safetensors library, which needs all tensors contiguous, unshared and on the CPU
at once: for a replay of several GB that is a second copy. This one converts, hashes and writes one tensor at
a time.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from troop.runs import files

_CHUNK_BYTES = 16 << 20
_CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
_STORED_AS_BYTES = [
    torch.complex128,
    torch.complex64,
    torch.complex32,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
]
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in [*_CODES, *_STORED_AS_BYTES]}


def file_bytes(tensors: Mapping[str, Tensor]) -> int:
    """An upper bound of the bytes that `write` writes."""
    return sum(t.numel() * t.element_size() + len(name) * 6 + 400 for name, t in tensors.items()) + 64


def write(path: Path, tensors: Mapping[str, Tensor]) -> tuple[int, str]:
    """Write the file and flush it to the disk; return its size and SHA-256."""
    if sys.byteorder != "little":
        raise NotImplementedError("Checkpoints can be written on little-endian machines only.")
    # The widest dtype first, as in the library: every tensor is then aligned in the file.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    digest, written = hashlib.sha256(), 0
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "wb") as file:
        written += _write_hashed(file, digest, memoryview(_header(ordered)))
        for _, tensor in ordered:
            written += _write_hashed(file, digest, _raw(tensor))
        file.flush()
        os.fsync(file.fileno())
    return written, digest.hexdigest()


def _header(ordered: list[tuple[str, Tensor]]) -> bytes:
    entries, offset = {}, 0
    for name, tensor in ordered:
        size = tensor.numel() * tensor.element_size()
        code = _CODES.get(tensor.dtype)
        shape = (
            [size] if code is None else list(tensor.shape)
        )  # the format has no such dtype: stored as bytes
        entries[name] = {"dtype": code or "U8", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _raw(tensor: Tensor) -> memoryview:
    flat = tensor.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.stride(0) != 1:  # one element counts as contiguous with any stride
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().data


def _write_hashed(file: BinaryIO, digest: hashlib._Hash, content: memoryview) -> int:
    for start in range(0, len(content), _CHUNK_BYTES):
        chunk = content[start : start + _CHUNK_BYTES]
        digest.update(chunk)
        file.write(chunk)
    return len(content)


def verify(path: Path, size: int, sha256: str) -> None:
    """Raise ValueError or OSError unless the path is a regular file of this size and hash."""
    with files.open_regular(path) as file:
        actual = os.fstat(file.fileno()).st_size
        if actual != size:
            raise ValueError(f"has {actual} bytes instead of {size}")
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise ValueError("does not match its SHA-256")


class TensorFile:
    """A safetensors file whose tensors are read one by one."""

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        self._file: Any = safe_open(str(path), framework="pt", device="cpu")

    def read(self, name: str, dtype: str, shape: list[int]) -> Tensor:
        """Return a copy of the tensor; ValueError if it does not have this dtype and shape."""
        expected = _DTYPES.get(dtype)
        if expected is None:
            raise ValueError(f"holds a tensor of unknown dtype {dtype[:20]!r}")
        # The library returns a view of the memory-mapped file; a copy survives changes of the file.
        tensor: Tensor = self._file.get_tensor(name).clone()
        if expected not in _CODES and tensor.dtype == torch.uint8:
            tensor = tensor.view(expected).reshape(shape)
        if tensor.dtype != expected or list(tensor.shape) != shape:
            raise ValueError(f"holds {name[:80]!r} with a dtype or shape that differs from the manifest")
        return tensor
