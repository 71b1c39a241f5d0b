"""ProcessUsage: CPU time and resident memory of this process."""

from __future__ import annotations

import time
from pathlib import Path

_STATUS = Path("/proc/self/status")


class ProcessUsage:
    """Measures the cores that this process used since the last reading, and its memory now."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """Return `cpu` (cores in use, mean since the last reading) and `memory_bytes`."""
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        cores = (cpu_s - self._cpu_s) / max(wall_s - self._wall_s, 1e-9)
        self._wall_s, self._cpu_s = wall_s, cpu_s
        return {"cpu": round(cores, 3), "memory_bytes": memory_bytes()}


def memory_bytes() -> int:
    """Return the resident memory of this process without pages of files; 0 if the system does not tell.

    Pages of files (libraries, a replay in `--system.replay-dir`) are left out, because the kernel can drop
    them when memory is short.
    """
    try:
        fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines() if ":" in line)
        return sum(1024 * int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem"))
    except (OSError, KeyError):  # not Linux
        return 0
