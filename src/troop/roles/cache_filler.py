"""CacheFiller: a process that compiles losses into torch's cache on disk while training goes on.

A thread could not do it: tracing holds the interpreter lock, which slowed updates down to a quarter, and
torch restores the state of the random number generators when it ends. With the code in the cache, the learner
itself still traces its losses (7 s of CPU time on our machine) but waits for no C++ compiler (26 s more).
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from troop.core.batch import Trajectory, Transition

MODULE = "troop.compile_cache"  # the program of the process


class CacheFiller:
    """Compiles the losses of a learner for batches like `batch`.

    `learner` describes it as `troop.compile_cache.main` expects: algorithm and env as JSON, method, device.
    """

    def __init__(self, learner: dict[str, Any], batch: Transition | Trajectory) -> None:
        job = learner | {"threads": torch.get_num_threads(), "batch": describe_batch(batch)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdin is not None
        with self._process.stdin as stdin:
            stdin.write(json.dumps(job).encode())  # fits the pipe, so it does not wait for the process

    def poll(self) -> bool | None:
        """Return whether the losses were compiled; None while the process runs."""
        code = self._process.poll()
        return None if code is None else code == 0

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def describe_batch(batch: Transition | Trajectory) -> dict[str, Any]:
    """Return the fields of a batch as JSON values: [shape, stride, dtype] instead of each tensor."""
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    found: dict[str, Any] = pytree.tree_map_only(
        Tensor, lambda x: [list(x.shape), list(x.stride()), str(x.dtype).removeprefix("torch.")], fields
    )
    return found


def batch_like(description: dict[str, Any]) -> Transition | Trajectory:
    """Return zeros with the layout that `describe_batch` returned; all steps of a trajectory are valid."""

    def build(value: Any) -> Any:  # noqa: ANN401 - JSON
        if isinstance(value, dict):
            return {name: build(item) for name, item in value.items()}
        if value is None:
            return None
        shape, stride, dtype = value
        return torch.empty_strided(shape, stride, dtype=getattr(torch, dtype)).zero_()

    if "valid" not in description:
        return Transition(**build(description))
    batch = Trajectory(**build(description))
    batch.valid.fill_(True)
    return batch
