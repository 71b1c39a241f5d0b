"""Which device each role computes on, as a user says it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from troop.core.config import suggest
from troop.core.devices import check_device
from troop.core.errors import BadInput


def parse_devices(devices: str, usual: Mapping[str, str]) -> dict[str, str]:
    """The device of each role: the `usual`, but for what `devices` says, as learner=cuda:1,actor0=cuda:0.

    `actor` stands for actor0, actor1 and so on, unless one is named by itself. BadInput if a role is not one
    of these, is named twice, or its device is not here.
    """
    said: dict[str, str] = {}
    for part in devices.split(",") if devices.strip() else ():
        role, _, device = (word.strip() for word in part.partition("="))
        if not (role and device) or role in said:
            raise BadInput(
                f"--system.devices is {devices!r}; it must look like role=cuda:1,role=cpu and name each role "
                "at most once."
            )
        said[role] = device
    kinds = {role: _kind(role) for role in usual}
    for role, device in said.items():
        if role not in usual and role not in kinds.values():
            raise BadInput(f"--system.devices names {role!r}{_meant(role, {*usual, *kinds.values()})}")
        check_device(device, f"--system.devices for {role}")
    return {role: said.get(role, said.get(kinds[role], device)) for role, device in usual.items()}


def _kind(role: str) -> str:
    """`actor` of `actor12`."""
    return re.sub(r"\d+$", "", role) or role


def _meant(role: str, known: set[str]) -> str:
    near = suggest(role, known, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(known))}."
