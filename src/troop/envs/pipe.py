"""Messages between a process and its child: a JSON line, then raw arrays; no pickle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import IO, Any

import numpy as np


def write_message(pipe: IO[bytes], header: dict[str, Any], arrays: Sequence[np.ndarray] = ()) -> None:
    """Write a JSON header, then dtype, shape and bytes of each array. Raises BrokenPipeError."""
    pipe.write(json.dumps({**header, "arrays": len(arrays)}).encode() + b"\n")
    for array in arrays:
        pipe.write(json.dumps([array.dtype.str, list(array.shape)]).encode() + b"\n")
        pipe.write(np.ascontiguousarray(array).tobytes())
    pipe.flush()


def read_message(pipe: IO[bytes]) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Return the next header and its arrays. Raises EOFError if the other process has closed the pipe."""
    header = json.loads(_read_line(pipe))
    arrays = []
    for _ in range(header["arrays"]):
        dtype, shape = json.loads(_read_line(pipe))
        size = int(np.dtype(dtype).itemsize * np.prod(shape, dtype=np.int64))
        content = pipe.read(size)
        if len(content) != size:
            raise EOFError("the other process has closed the pipe")
        arrays.append(np.frombuffer(bytearray(content), dtype=np.dtype(dtype)).reshape(shape))
    return header, arrays


def _read_line(pipe: IO[bytes]) -> bytes:
    line = pipe.readline()
    if not line.endswith(b"\n"):
        raise EOFError("the other process has closed the pipe")
    return line
