"""What devices there are and what they can do, checked before anything starts."""

from __future__ import annotations

import os
import shutil
import sys

import torch

from troop.core.errors import BadInput, SetupProblem


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


def bf16_units(device: str) -> bool:
    """Whether the device multiplies bf16 in hardware."""
    if torch.device(device).type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_arm_bf16_supported")
    return any(bool(getattr(torch.cpu, name)()) for name in names if hasattr(torch.cpu, name))


def check_bf16(device: str) -> None:
    """Raise BadInput where bf16 would be emulated."""
    if not bf16_units(device):
        raise BadInput(
            f"--algorithm.amp is True but {device} here has no bf16 units: it would be about a hundred times "
            "slower than float32. Leave it off."
        )


def cpp_compiler() -> tuple[str, bool]:
    """What torch.compile calls, and whether it is here."""
    name = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    return name, shutil.which(name) is not None


def check_compiler(device: str) -> None:
    """Raise SetupProblem where nothing could be compiled for a CPU; this machine's compiler is looked for."""
    name, here = cpp_compiler()
    if not here and torch.device(device).type == "cpu":
        raise SetupProblem(
            f"--algorithm.compile is True but the C++ compiler {name} is not here; get it or leave it off."
        )
