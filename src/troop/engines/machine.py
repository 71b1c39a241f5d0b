"""What a process asks of its machine before it starts: threads, and an allocator that keeps its pages."""

from __future__ import annotations

import ctypes
import os
import sys

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # glibc's mallopt parameters


def prepare(threads: int) -> None:
    """Set torch's threads (0: one per core) and keep freed memory mapped.

    glibc gives every block above 32 MB back to the kernel when it is freed. A learner frees and takes
    such blocks several times an update, and faulting the pages in again costs a tenth of it.
    """
    import torch

    torch.set_num_threads(threads or cores())
    keep_pages()


def keep_pages() -> None:
    """Keep freed memory mapped, where the C library can."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(MMAP_THRESHOLD, 1 << 30)
            libc.mallopt(TRIM_THRESHOLD, (1 << 31) - 1)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
