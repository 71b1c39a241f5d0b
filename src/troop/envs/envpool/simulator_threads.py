"""Scheduling of EnvPool's threads, so that they start to step at once and do not stop their caller.

`send` wakes one simulator thread after the other. The Linux scheduler may put the first one on the caller's
core, where it preempts the caller before that has woken the second one: then one core steps all envs while
the other one is idle.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


def affinity_options(threads: int) -> dict[str, int]:
    """Return the options of EnvPool that give each of `threads` threads (0: one per core) a core of its own.

    Empty unless there are as many threads as cores and this process may use all cores of the machine:
    EnvPool counts them from 0.
    """
    count = os.cpu_count() or 1
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    return {"thread_affinity_offset": 0} if (threads or count) == count == len(allowed) > 1 else {}


@contextlib.contextmanager
def without_wakeup_preemption() -> Iterator[None]:
    """Let threads that the calling thread starts inside not preempt other threads when they are woken.

    On Linux they have SCHED_BATCH; elsewhere, and where this is forbidden, nothing changes.
    """
    if not hasattr(os, "SCHED_BATCH"):
        yield
        return
    try:
        policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
        if policy == os.SCHED_OTHER:  # a policy that the user has chosen is kept
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)
