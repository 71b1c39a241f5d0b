"""Checks of devices and compilers, made before a run starts."""

from __future__ import annotations

import os
import shutil
import sys

import torch

from troop.core.errors import BadInput, SetupProblem


def check_device(device: str, flag: str = "--device") -> None:
    """Raise BadInput, naming the flag, if torch cannot use the device on this machine."""
    try:
        parsed = torch.device(device)
    except RuntimeError as error:
        raise BadInput(f"{flag} is {device!r}; it must be cpu, cuda or cuda:N.") from error
    if parsed.type == "cuda" and (
        not torch.cuda.is_available() or (parsed.index or 0) >= torch.cuda.device_count()
    ):
        raise BadInput(
            f"{flag} is {device!r} but torch sees {torch.cuda.device_count()} CUDA devices; use cpu."
        )
    if parsed.type not in ("cpu", "cuda"):
        raise BadInput(f"{flag} is {device!r}; it must be cpu, cuda or cuda:N.")


def bf16_units(device: str) -> bool:
    """Whether the device has hardware units that multiply bf16."""
    if torch.device(device).type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_arm_bf16_supported")
    return any(bool(getattr(torch.cpu, name)()) for name in names if hasattr(torch.cpu, name))


def check_bf16(device: str) -> None:
    """Raise BadInput if the device would emulate bf16."""
    if not bf16_units(device):
        raise BadInput(
            f"--algorithm.amp is True but {device} has no bf16 units on this machine and would be about a "
            "hundred times slower than with float32; leave it off."
        )


def cpp_compiler() -> tuple[str, bool]:
    """Return the C++ compiler that torch.compile runs, and whether this machine has it."""
    name = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    return name, shutil.which(name) is not None


def check_compiler(device: str) -> None:
    """Raise SetupProblem if the device is a CPU and this machine has no C++ compiler for torch.compile."""
    name, installed = cpp_compiler()
    if not installed and torch.device(device).type == "cpu":
        raise SetupProblem(
            f"--algorithm.compile is True but the C++ compiler {name} is not installed; install it or "
            "leave the flag off."
        )
