"""Memory that this process may use: of the machine, within the limits of its control groups."""

from __future__ import annotations

import os
from pathlib import Path

from troop.core.control_groups import own_groups

MEMINFO = Path("/proc/meminfo")


def free_memory() -> int:
    """Return the bytes that are free on the machine or, if that is less, in a control group of this process.

    A container or a batch system limits a job by a control group; the kernel kills the job at that limit,
    however much memory the machine has.
    """
    return min([_machine_free(), *_cgroup_free()])


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 if the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _machine_free() -> int:
    try:
        fields = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # no Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroup_free() -> list[int]:
    """Return the free bytes of each control group, from the own one up to the root, that has a limit."""
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }
    free = (_free_in(folder, *names[version]) for folder, version in own_groups("memory"))
    return [limited for limited in free if limited is not None]


def _free_in(folder: Path, limit_file: str, usage_file: str, cache_field: str) -> int | None:
    """Return limit - usage + reclaimable file cache of one group; None if it has no limit."""
    try:
        limit = int((folder / limit_file).read_text())  # `max` is no number
        usage = int((folder / usage_file).read_text())
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return max(0, limit - usage + int(statistics.get(cache_field, 0)))
