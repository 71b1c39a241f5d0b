"""Allocation of replay arrays in memory, on a GPU or in files, after a check that they fit."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from troop.core.errors import BadInput, SetupProblem
from troop.core.memory import free_memory

Allocate = Callable[[tuple[int, ...], torch.dtype], Tensor]


def allocator(needed: int, device: str, directory: str, description: str) -> Allocate:
    """Return a function that allocates zeros, after a check that `needed` bytes are free.

    Raises SetupProblem with the numbers if they are not; `description` names the replay in the message.
    """
    kind = torch.device(device)
    if directory:
        if kind.type != "cpu":
            raise BadInput(
                f"--system.replay-dir stores the replay in files and needs --device cpu, not {device}."
            )
        return _file_allocator(needed, directory, description)
    free = torch.cuda.mem_get_info(kind)[0] if kind.type == "cuda" else free_memory()
    if needed > free:
        cure = ", or store it on disk with --system.replay-dir" if kind.type == "cpu" else ""
        raise SetupProblem(
            f"{description} needs {needed / 1e9:.2f} GB on {device} but {free / 1e9:.2f} GB are free; "
            f"lower the capacity of the replay (--replay-capacity), or --envs{cure}."
        )
    return lambda shape, dtype: zeros(shape, dtype, device)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """Return zeros; on the CPU in memory from NumPy, which requests huge pages for fast random access."""
    size = torch.Size(shape).numel() * dtype.itemsize
    if not size or torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # Written once, so that the kernel assigns the pages now and not during the run.
    return torch.from_numpy(np.empty(size, np.uint8)).zero_().view(dtype).view(shape)


def _file_allocator(needed: int, directory: str, description: str) -> Allocate:
    try:
        os.makedirs(directory, exist_ok=True)
        free = shutil.disk_usage(directory).free
    except OSError as error:
        raise SetupProblem(f"--system.replay-dir {directory!r} cannot be used: {error.strerror}.") from error
    if needed > free:
        raise SetupProblem(
            f"{description} needs {needed / 1e9:.2f} GB in {directory!r} but {free / 1e9:.2f} GB are free; "
            "lower the capacity of the replay (--replay-capacity), or --envs."
        )

    def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = torch.Size(shape).numel()
        if not size:
            return torch.zeros(shape, dtype=dtype)
        try:
            handle, path = tempfile.mkstemp(".replay", dir=directory)
            try:
                # Reserves the blocks now: writing to a mapping on a full disk would kill the process.
                os.posix_fallocate(handle, 0, size * dtype.itemsize)
                mapped = torch.from_file(path, shared=True, size=size, dtype=dtype)
            finally:
                os.close(handle)
                os.unlink(path)  # the mapping keeps the file until the process exits
        except OSError as error:
            raise SetupProblem(
                f"{description} cannot be stored in {directory!r}: {error.strerror}."
            ) from error
        return mapped.view(shape)

    return allocate
