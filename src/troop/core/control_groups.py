"""Control groups of this process, by which containers and batch systems limit a job."""

from __future__ import annotations

from pathlib import Path

CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def own_groups(controller: str) -> list[tuple[Path, int]]:
    """Return the folder of each group, from the own one up to the root, with the version (1 or 2)."""
    groups: list[tuple[Path, int]] = []
    try:
        lines = OWN_CGROUPS.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, version = CGROUPS, 2
        elif controller in controllers.split(","):
            root, version = CGROUPS / controller, 1
        else:
            continue
        own = root / path.lstrip("/")
        # Inside a container the path may be that of the host; the container's own group is then the root.
        groups += [(folder, version) for folder in (own, *own.parents) if folder.is_relative_to(root)]
    return groups
