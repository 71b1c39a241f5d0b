"""metrics.jsonl: one object a line, counters first; a disk that fails never stops training."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_BACKLOG = 10_000  # lines kept while the disk takes none


class Metrics:
    """Appends rows to `path`; with counters to `resume` at, rows beyond them are dropped first.

    While a write fails the rows wait in memory (the newest few thousand), `warn` is told once, and once more
    when they could be written after all.
    """

    def __init__(
        self,
        path: Path,
        resume: tuple[int, int] | None = None,
        warn: Callable[[str], None] = warnings.warn,
    ) -> None:
        self._path, self._resume, self._warn = path, resume, warn
        self._handle: int | None = None
        self._waiting: deque[bytes] = deque(maxlen=_BACKLOG)
        self._failing = False
        self._flush()

    def write(self, wall_s: float, env_steps: int, updates: int, values: Mapping[str, Any]) -> None:
        """Append one row; numbers that are not finite become null."""
        row = {"wall_s": wall_s, "env_steps": env_steps, "updates": updates, **values}
        plain = {name: _plain(value) for name, value in row.items()}
        self._waiting.append(json.dumps(plain, allow_nan=False).encode() + b"\n")
        self._flush()

    def close(self) -> None:
        """Write what still waits, if the disk takes it; may be called twice."""
        self._flush()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _flush(self) -> None:
        try:
            handle = self._open()
            while self._waiting:
                _append(handle, self._waiting[0])
                self._waiting.popleft()
        except OSError as error:
            if not self._failing:
                self._failing = True
                self._warn(f"{self._path} cannot be written ({error.strerror}); training goes on without it.")
            return
        if self._failing:
            self._failing = False
            self._warn(f"{self._path} is written again.")

    def _open(self) -> int:
        if self._handle is None:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                _mend(handle, self._resume)
            except BaseException:
                os.close(handle)
                raise
            # Opened again later, rows since written must not be taken for rows beyond the counters.
            self._handle, self._resume = handle, None
        return self._handle


def _append(handle: int, line: bytes) -> None:
    """Write the whole line or none of it: half a line would spoil the next one too."""
    good = os.fstat(handle).st_size
    try:
        done = 0
        while done < len(line):
            done += os.write(handle, line[done:])
    except OSError:
        os.ftruncate(handle, good)
        raise


def _mend(handle: int, resume: tuple[int, int] | None) -> None:
    """Cut the file before the first row beyond the counters, or before a last line that is torn."""
    good = 0
    with open(os.dup(handle), "rb") as file:
        file.seek(0)
        for line in file:
            if not line.endswith(b"\n") or _beyond(line, resume):
                break
            good += len(line)
        size = os.fstat(handle).st_size
    if good < size:
        os.ftruncate(handle, good)


def _beyond(line: bytes, resume: tuple[int, int] | None) -> bool:
    if resume is None:
        return False
    try:
        row = json.loads(line)
        return bool(row["env_steps"] > resume[0] or row["updates"] > resume[1])
    except (ValueError, TypeError, KeyError, RecursionError):
        return False  # a damaged line in the middle is for readers to pass over, not a reason to cut the rest


def _plain(value: Any) -> Any:  # noqa: ANN401 - one JSON leaf
    if hasattr(value, "item"):  # a 0-d tensor or a numpy number
        try:
            value = value.item()
        except (ValueError, RuntimeError):  # more than one number is no metric
            return None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
