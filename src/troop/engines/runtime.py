"""What a process asks of its machine before it starts: threads, and an allocator that keeps its pages."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator

from troop.core.errors import SetupProblem

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # glibc's mallopt parameters
# Read by libraries when they are loaded.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
HOST_BYTES = 20 << 20  # that a host takes for itself before it holds anything, torch being shared
HOST_FILES = 4  # that a launcher holds open for a host: line, end, stack, and one on its way
OTHER_FILES = 100


def prepare(threads: int) -> None:
    """Set torch's threads (0: one per core) and keep freed memory mapped.

    glibc gives every block above 32 MB back to the kernel when it is freed. A learner frees and takes
    such blocks several times an update, and faulting the pages in again costs a tenth of it.
    """
    import torch

    torch.set_num_threads(threads or cores())
    keep_freed_pages()


def keep_freed_pages() -> None:
    """Keep freed memory mapped, where the C library can."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(MMAP_THRESHOLD, 1 << 30)
            libc.mallopt(TRIM_THRESHOLD, (1 << 31) - 1)


def defer_compiler_import() -> None:
    """Let optimizers be made without torch's compiler: its import, a second, is put off until one needs it.

    Torch marks methods of optimizers as not to be compiled, and imports the compiler at their first call in
    order to tell it so. It keeps what it is told in this attribute; the methods themselves say the same.
    """
    if "torch" not in sys.modules or "torch._dynamo" in sys.modules:
        return
    from torch.optim import Optimizer

    for name in ("add_param_group", "load_state_dict", "state_dict", "zero_grad"):
        method = getattr(getattr(Optimizer, name), "__wrapped__", None)
        if method is not None:
            method.__dict__.setdefault("__dynamo_disable", method)


def check_capacity(hosts: int) -> None:
    """Let this process hold the files of so many hosts; SetupProblem if there is no room for them."""
    import resource

    import psutil

    wanted, free = hosts * HOST_BYTES, psutil.virtual_memory().available
    cure = "lower the number of actors, or spread them over machines with --engine ray"
    if wanted > free:
        raise SetupProblem(
            f"{hosts:,} hosts want at least {wanted / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are "
            f"free; {cure}."
        )
    files = OTHER_FILES + hosts * HOST_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and files > hard:
        raise SetupProblem(f"{hosts:,} hosts want {files:,} open files and {hard:,} are allowed; {cure}.")
    if soft != resource.RLIM_INFINITY and files > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def block_sigint() -> Iterator[None]:
    """What is started inside does not hear a Ctrl-C at the terminal, which is the launcher's business."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def thread_limit(threads: int) -> Iterator[None]:
    """Libraries read these when they are loaded; what is started inside, or its fork server, has them set."""
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
