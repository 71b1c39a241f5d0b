"""Room for a replay: in memory, on a GPU, or in a file, refused with the numbers where there is none."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable

import numpy as np
import psutil
import torch
from torch import Tensor

from troop.core.errors import BadInput, SetupProblem

Allocate = Callable[[tuple[int, ...], torch.dtype], Tensor]


def allocator(needed: int, device: str, folder: str, what: str) -> Allocate:
    """How to allocate, once `needed` bytes are known to be free; SetupProblem with the numbers if not."""
    kind = torch.device(device)
    if folder:
        if kind.type != "cpu":
            raise BadInput(
                f"--system.replay-dir keeps the replay in files, which is for --device cpu, not {device}."
            )
        return _in(folder, needed, what)
    free = torch.cuda.mem_get_info(kind)[0] if kind.type == "cuda" else psutil.virtual_memory().available
    if needed > free:
        cure = ", or keep it on a disk with --system.replay-dir" if kind.type == "cpu" else ""
        raise SetupProblem(
            f"{what} needs {needed / 1e9:.2f} GB on {device} but {free / 1e9:.2f} GB are free; "
            f"lower --system.replay-capacity (rows), or --envs{cure}."
        )
    return lambda shape, dtype: zeros(shape, dtype, device)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """Zeros for a replay. NumPy asks the kernel for huge pages, torch does not: rows are read all over it."""
    size = torch.Size(shape).numel() * dtype.itemsize
    if not size or torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # Written once, so that the memory is taken now and not when a run is under way.
    return torch.from_numpy(np.empty(size, np.uint8)).zero_().view(dtype).view(shape)


def _in(folder: str, needed: int, what: str) -> Allocate:
    try:
        os.makedirs(folder, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise SetupProblem(f"--system.replay-dir {folder!r} cannot be used: {error.strerror}.") from error
    if needed > free:
        raise SetupProblem(
            f"{what} needs {needed / 1e9:.2f} GB in {folder!r} but {free / 1e9:.2f} GB are free; "
            "lower --system.replay-capacity (rows), or --envs."
        )

    def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = torch.Size(shape).numel()
        if not size:
            return torch.zeros(shape, dtype=dtype)
        try:
            handle, path = tempfile.mkstemp(".replay", dir=folder)
            try:
                os.posix_fallocate(
                    handle, 0, size * dtype.itemsize
                )  # a disk that fills up later would kill us
                mapped = torch.from_file(path, shared=True, size=size, dtype=dtype)
            finally:
                os.close(handle)
                os.unlink(path)  # the mapping keeps it; nothing is left behind, however the run ends
        except OSError as error:
            raise SetupProblem(f"{what} cannot be kept in {folder!r}: {error.strerror}.") from error
        return mapped.view(shape)

    return allocate
