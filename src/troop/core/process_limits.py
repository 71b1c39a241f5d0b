"""Processes and threads that this user may still start: of the machine, the user and its control groups."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from troop.core.control_groups import own_groups

PROC = Path("/proc")


def free_processes() -> int:
    """Return how many processes and threads can still be started; the kernel counts both alike."""
    return max(0, min([_machine_free(), *_user_free(), *_group_free()], default=1 << 31))


def _machine_free() -> int:
    try:
        names = ("pid_max", "threads-max")
        limit = min(int((PROC / "sys/kernel" / name).read_text()) for name in names)
        running = int((PROC / "loadavg").read_text().split()[3].split("/")[1])
    except (OSError, ValueError, IndexError):  # no Linux
        return 1 << 31
    return limit - running


def _user_free() -> list[int]:
    """Return the rest of the user's limit; root has none."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    user = os.getuid()
    if limit == resource.RLIM_INFINITY or user == 0:
        return []
    running = 0
    for status in PROC.glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
            running += int(fields["Threads"]) if int(fields["Uid"].split()[0]) == user else 0
        except (OSError, KeyError, ValueError):  # it has ended
            continue
    return [limit - running]


def _group_free() -> list[int]:
    free = []
    for folder, _ in own_groups("pids"):
        try:
            limit = int((folder / "pids.max").read_text())  # `max` is no number
            free.append(limit - int((folder / "pids.current").read_text()))
        except (OSError, ValueError):
            continue
    return free
