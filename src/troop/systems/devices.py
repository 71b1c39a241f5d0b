"""The device of each role, as given by --system.devices."""

from __future__ import annotations

import re
from collections.abc import Mapping

from troop.core.config import suggest
from troop.core.devices import check_device
from troop.core.errors import BadInput


def parse_devices(text: str, defaults: Mapping[str, str]) -> dict[str, str]:
    """Return the device of each role of `defaults`, changed by `text`, such as learner=cuda:1,actor0=cuda:0.

    `actor` means all of actor0, actor1, ... that are not listed by number. Raise BadInput if `text` lists an
    unknown role, a role twice, or a device that this machine does not have.
    """
    listed: dict[str, str] = {}
    for entry in text.split(",") if text.strip() else ():
        role, _, device = (word.strip() for word in entry.partition("="))
        if not (role and device) or role in listed:
            raise BadInput(
                f"--system.devices is {text!r}; it must look like role=cuda:1,role=cpu and list each role at "
                "most once."
            )
        listed[role] = device
    groups = {role: _group(role) for role in defaults}
    for role, device in listed.items():
        if role not in defaults and role not in groups.values():
            raise BadInput(f"--system.devices lists {role!r}{_hint(role, {*defaults, *groups.values()})}")
        check_device(device, f"--system.devices for {role}")
    return {role: listed.get(role, listed.get(groups[role], device)) for role, device in defaults.items()}


def _group(role: str) -> str:
    """Return the role without its number: `actor` for `actor12`."""
    return re.sub(r"\d+$", "", role) or role


def _hint(role: str, roles: set[str]) -> str:
    similar = suggest(role, roles, 1)
    return f"; did you mean {similar[0]!r}?" if similar else f"; the roles are {', '.join(sorted(roles))}."
