"""Devices by name, checked before anything starts."""

from __future__ import annotations

import torch

from troop.core.errors import BadInput


def check_device(device: str, flag: str = "--device") -> None:
    """Raise BadInput, naming the flag, if torch cannot use the device here."""
    try:
        kind = torch.device(device)
    except RuntimeError as error:
        raise BadInput(f"{flag} is {device!r}; it must be cpu, cuda or cuda:N.") from error
    if kind.type == "cuda" and (
        not torch.cuda.is_available() or (kind.index or 0) >= torch.cuda.device_count()
    ):
        raise BadInput(
            f"{flag} is {device!r} but torch sees {torch.cuda.device_count()} CUDA devices; use cpu."
        )
    if kind.type not in ("cpu", "cuda"):
        raise BadInput(f"{flag} is {device!r}; it must be cpu, cuda or cuda:N.")
