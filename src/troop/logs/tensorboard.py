"""Scalars for TensorBoard if it is installed; its errors never stop training."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_default_hook = threading.excepthook


def _silence_writer(args: threading.ExceptHookArgs) -> None:
    """Print no traceback of TensorBoard's writer thread: the next `write` reports its error in one line."""
    if type(args.thread).__module__.partition(".")[0] != "tensorboard":
        _default_hook(args)


class TensorBoard:
    """Writes event files into `folder`; does nothing if TensorBoard is missing or after an error.

    With `resume_at`, TensorBoard hides the events of the earlier part of the run beyond these env steps.
    """

    def __init__(
        self,
        folder: Path,
        resume_at: int | None = None,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._writer: Any = None
        self._warn = warn
        try:
            from torch.utils.tensorboard import SummaryWriter

            purge = None if resume_at is None else resume_at + 1
            # With a long queue a slow disk delays only the writer's own thread, not training.
            self._writer = SummaryWriter(str(folder), purge_step=purge, max_queue=10_000, flush_secs=10)
            threading.excepthook = _silence_writer
        except (
            Exception
        ):  # not installed, installed in part, or a disk error: metrics.jsonl has all values anyway
            self._writer = None

    @property
    def active(self) -> bool:
        """Whether events are being written."""
        return self._writer is not None

    def write(self, wall_s: float, env_steps: int, updates: int, values: Mapping[str, Any]) -> None:
        """Write every finite number of `values` at step `env_steps`."""
        if self._writer is None:
            return
        try:
            for name, value in {**values, "time/wall_s": wall_s, "time/updates": updates}.items():
                number = float(value) if not isinstance(value, str | None) else math.nan
                if math.isfinite(number):
                    self._writer.add_scalar(name, number, env_steps)
        except Exception as error:  # raised by its thread: a full disk, a removed folder
            self._writer = None
            reason = getattr(error, "strerror", None) or error
            self._warn(
                f"TensorBoard events are not written any more ({reason}); metrics.jsonl has all values"
            )

    def close(self) -> None:
        """Write the queued events and close the files; may be called twice."""
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except Exception:  # the run is over
                return
