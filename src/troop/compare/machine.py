"""The machine a comparison is made on: its result holds for no other."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

DECIDES = ("cpu", "cores", "gpu")


def machine(device: str) -> dict[str, Any]:
    """What decides how fast a run is here, and the versions in use."""
    import psutil
    import torch

    from troop import __version__
    from troop.engines.runtime import cores

    return {
        "cpu": _cpu(),
        "cores": cores(),
        "gpu": torch.cuda.get_device_name(device) if device.startswith("cuda") else None,
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "troop": __version__,
    }


def described(found: dict[str, Any]) -> str:
    """In a line."""
    cores = found.get("cores")
    words = f"{cores} core{'' if cores == 1 else 's'} of {found.get('cpu')}, {found.get('memory_gb')} GB"
    words += f", {found['gpu']}" if found.get("gpu") else ""
    return f"{words}; {found.get('system')}, torch {found.get('torch')}, troop {found.get('troop')}"


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether times measured on both may stand in one table."""
    return all(one.get(name) == other.get(name) for name in DECIDES)


def busy(seconds: float = 0.5) -> float:
    """The share of all cores that others use just now; nothing of ours may be running."""
    import psutil

    return float(psutil.cpu_percent(interval=seconds)) / 100


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or "unknown"
