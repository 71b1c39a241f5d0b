"""Facts about this machine: measured times hold for no other."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

HARDWARE = ("cpu", "cores", "gpu")


def machine_facts(device: str) -> dict[str, Any]:
    """Return the hardware that determines the speed of a run, and the versions of the software."""
    import psutil
    import torch

    from troop import __version__
    from troop.engines.runtime import cores

    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "gpu": torch.cuda.get_device_name(device) if device.startswith("cuda") else None,
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "troop": __version__,
    }


def describe(facts: dict[str, Any]) -> str:
    """Format the facts as one line."""
    cores = facts.get("cores")
    hardware = f"{cores} core{'' if cores == 1 else 's'} of {facts.get('cpu')}, {facts.get('memory_gb')} GB"
    hardware += f", {facts['gpu']}" if facts.get("gpu") else ""
    return f"{hardware}; {facts.get('system')}, torch {facts.get('torch')}, troop {facts.get('troop')}"


def same_hardware(facts: dict[str, Any], other_facts: dict[str, Any]) -> bool:
    """Return whether times measured on both machines are comparable."""
    return all(facts.get(name) == other_facts.get(name) for name in HARDWARE)


def background_load(seconds: float = 0.5) -> float:
    """Measure for `seconds` which share of all cores is in use; call it while no run of Troop is active."""
    import psutil

    return float(psutil.cpu_percent(interval=seconds)) / 100


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown"
