"""Process settings: CPU threads, memory allocator, cores and signals."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing import resource_tracker

from troop.core.signals import STOP_SIGNALS

M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1  # parameters of glibc's mallopt
MADV_HUGEPAGE = 14
HUGE_PAGE = 2 << 20
HEAP_RESERVE = 256 << 20  # address space of the heap for which huge pages are requested
# Libraries read these when they are loaded.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def prepare(threads: int) -> None:
    """Set the threads of torch (0: OMP_NUM_THREADS, or one per core) and keep freed memory mapped.

    glibc returns every block above 32 MB to the kernel when it is freed. A learner allocates and frees such
    blocks several times per update; faulting their pages in again takes a tenth of the update.
    """
    import torch

    torch.set_num_threads(threads or default_threads())
    keep_freed_pages()


def keep_freed_pages() -> None:
    """Keep freed memory mapped, if the C library is glibc."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
            libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
            _request_huge_pages(libc)


def _request_huge_pages(libc: ctypes.CDLL) -> None:
    """Let the kernel use huge pages for the part of the heap that is allocated next.

    An update of small networks reads and writes some 20 MB; with pages of 4 KB its TLB misses take a
    twentieth of the time on a virtual machine.
    """
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.argtypes = (ctypes.c_void_p,)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    # Not written, so it takes no memory; freed, it stays part of the heap because of the trim threshold.
    start = libc.malloc(HEAP_RESERVE)
    if start:
        aligned = -(-start // HUGE_PAGE) * HUGE_PAGE
        libc.madvise(aligned, start + HEAP_RESERVE - aligned, MADV_HUGEPAGE)
        libc.free(start)


def defer_compiler_import() -> None:
    """Let optimizers be created without importing torch's compiler, which takes a second.

    Torch excludes some optimizer methods from compilation and imports the compiler at their first call to
    register that. The compiler stores the registration in the attribute that is set here, and the methods
    are marked as excluded anyway.
    """
    if "torch" not in sys.modules or "torch._dynamo" in sys.modules:
        return
    from torch.optim import Optimizer

    for name in ("add_param_group", "load_state_dict", "state_dict", "zero_grad"):
        method = getattr(getattr(Optimizer, name), "__wrapped__", None)
        if method is not None:
            method.__dict__.setdefault("__dynamo_disable", method)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_threads() -> int:
    """Return OMP_NUM_THREADS, the first of several numbers, or the number of cores if it is not set."""
    requested = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(requested) if requested.isdecimal() and int(requested) else cores()


@contextlib.contextmanager
def block_stop_signals() -> Iterator[None]:
    """Let processes that are started inside not receive STOP_SIGNALS, which only the driver handles.

    A terminal sends Ctrl-C and its own end to all processes of the group, not only to the driver.
    """
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        # Multiprocessing starts its resource tracker on demand, and that unblocks SIGINT and SIGTERM.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


@contextlib.contextmanager
def thread_limit(threads: int) -> Iterator[None]:
    """Set the thread variables of processes that are started inside; restore this process's own after."""
    previous = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    try:
        yield
    finally:
        for name, value in previous.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
