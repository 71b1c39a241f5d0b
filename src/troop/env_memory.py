"""Memory of the copies of an env: measured on a few of them, and compared with what is free."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from typing import TYPE_CHECKING, Any

from troop.core.env import EnvConfig
from troop.core.errors import SetupProblem
from troop.core.memory import free_memory, resident_bytes

if TYPE_CHECKING:
    from troop.experiment import Experiment

ASSUMED_BYTES = 16 << 20  # of a copy; if copies of this size fill less than half of the memory, none is built
MEASURED_COPIES = 3


def count_copies(experiment: Experiment[Any]) -> tuple[int, int]:
    """Return how many copies of the env training and evaluation build at the same time."""
    system: Any = experiment.system
    numbers = (getattr(system, name, None) for name in ("actors", "bundles", "workers", "runners"))
    collectors = next(filter(None, numbers), 1)
    if getattr(system, "divide_among_workers", False):  # --envs is the total of all workers
        collectors = 1
    return experiment.env.envs * int(collectors), experiment.evaluation.episodes


def _release_free_memory() -> None:
    """Give freed memory back to the system, where the C library can."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def bytes_per_copy(env: EnvConfig) -> int:
    """Return the resident memory of one more copy of the env after a reset, measured in this process."""
    env = env.with_envs(1)
    copies = [env.make(0)]  # its first copy also loads libraries, which the others share
    try:
        copies[0].reset(0)
        _release_free_memory()  # or copies would fit into it and add nothing
        before = resident_bytes()
        for seed in range(1, 1 + MEASURED_COPIES):
            copies.append(env.make(seed))
            copies[-1].reset(seed)
        return max(0, resident_bytes() - before) // MEASURED_COPIES
    finally:
        for copy in copies:
            copy.close()


def check_env_memory(experiment: Experiment[Any]) -> None:
    """Raise SetupProblem if the copies of the env do not fit the memory; measures only if that may be."""
    training, evaluation = count_copies(experiment)
    copies, free = training + evaluation, free_memory()
    assumed = max(ASSUMED_BYTES, getattr(experiment.env, "first_copy_bytes", 0))
    if copies * assumed < free / 2:
        return
    each = bytes_per_copy(experiment.env)
    if copies * each > free:
        raise SetupProblem(
            f"{training} envs for training and {evaluation} for evaluation need {copies * each / 1e9:.1f} GB "
            f"({each / 1e6:.1f} MB each, measured) and {free / 1e9:.1f} GB are free; lower --envs, "
            "--evaluation.episodes or the number of actors."
        )
