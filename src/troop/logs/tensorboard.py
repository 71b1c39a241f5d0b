"""Scalars for TensorBoard, if it is installed; never a reason to stop training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class TensorBoard:
    """Writes event files into `folder`; without TensorBoard, or after a failure, it quietly does nothing.

    With `resume_at` env steps, what an earlier part of the run wrote beyond them is hidden.
    """

    def __init__(self, folder: Path, resume_at: int | None = None) -> None:
        self._writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter

            purge = None if resume_at is None else resume_at + 1
            # A long queue, so that a slow disk is felt by the writer's own thread and not by training.
            self._writer = SummaryWriter(str(folder), purge_step=purge, max_queue=10_000, flush_secs=10)
        except Exception:  # absent, half installed, or the disk refuses: metrics.jsonl has it all anyway
            self._writer = None

    @property
    def active(self) -> bool:
        """Whether anything is written."""
        return self._writer is not None

    def write(self, wall_s: float, env_steps: int, updates: int, values: Mapping[str, Any]) -> None:
        """Write every finite number among `values` at `env_steps`."""
        if self._writer is None:
            return
        try:
            for name, value in {**values, "time/wall_s": wall_s, "time/updates": updates}.items():
                number = float(value) if not isinstance(value, str | None) else math.nan
                if math.isfinite(number):
                    self._writer.add_scalar(name, number, env_steps)
        except Exception:  # its thread hands over whatever it met: a full disk, a vanished folder
            self._writer = None

    def close(self) -> None:
        """Write out what is queued; may be called twice."""
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except Exception:  # nothing left to lose
                return
