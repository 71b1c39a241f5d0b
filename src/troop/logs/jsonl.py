"""metrics.jsonl: one JSON object per line, counters first; a failing or slow disk never stops training."""

from __future__ import annotations

import json
import math
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

_MAX_PENDING = 10_000  # lines held in memory while writing fails; older ones are dropped
_WAIT_S = 0.02  # `write` waits so long for the disk; rows are written every few seconds
_CLOSE_WAIT_S = 10.0


class MetricsWriter:
    """Appends rows to `path`. With `resume` (env steps, updates), rows beyond these counters are cut first.

    A thread writes the rows, so that a slow disk delays `write` by at most 20 ms. While writing fails or has
    not ended, the newest rows wait in memory. `warn` is called, by the thread that calls `write` or `close`,
    once when writing starts to fail and once when the pending rows have been written.
    """

    def __init__(
        self,
        path: Path,
        resume: tuple[int, int] | None = None,
        warn: Callable[[str], None] = warnings.warn,
    ) -> None:
        self._path, self._resume, self._warn = path, resume, warn
        self._handle: int | None = None
        self._pending: deque[bytes] = deque(maxlen=_MAX_PENDING)
        self._pending_lock = threading.Lock()
        self._failing = False
        self._warnings: deque[str] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self._writing: Future[None] | None = None
        self._write_pending(_CLOSE_WAIT_S)

    def write(self, wall_s: float, env_steps: int, updates: int, values: Mapping[str, Any]) -> None:
        """Append one row; NaN and infinities become null."""
        row = {"wall_s": wall_s, "env_steps": env_steps, "updates": updates, **values}
        encoded = {name: _json_value(value) for name, value in row.items()}
        line = json.dumps(encoded, allow_nan=False).encode() + b"\n"
        with self._pending_lock:
            self._pending.append(line)
        self._write_pending(_WAIT_S)

    def is_in(self, folder: Path) -> bool:
        """Whether rows are written to the file of this name in `folder`."""
        try:
            written = os.fstat(self._handle) if self._handle is not None else None
            return written is not None and os.path.samestat(written, os.stat(folder / self._path.name))
        except OSError:
            return False

    def close(self) -> None:
        """Try once more to write the pending rows and close the file; may be called twice."""
        for _ in range(2):  # the second writes the rows that came while the first was busy
            self._write_pending(_CLOSE_WAIT_S)
        self._thread.shutdown(wait=False)
        if self._handle is not None and self._writing is not None and self._writing.done():
            os.close(self._handle)
            self._handle = None

    def _write_pending(self, timeout_s: float) -> None:
        """Let the thread write the pending rows, wait for it, and report what went wrong."""
        if self._writing is None or self._writing.done():
            try:
                self._writing = self._thread.submit(self._flush)
            except RuntimeError:  # after `close`
                return
        wait([self._writing], timeout_s)
        while self._warnings:
            self._warn(self._warnings.popleft())

    def _flush(self) -> None:
        try:
            handle = self._open()
            while (line := self._next_line()) is not None:
                try:
                    _append(handle, line)
                except OSError:
                    self._put_back(line)
                    raise
        except OSError as error:
            if not self._failing:
                self._failing = True
                self._warnings.append(
                    f"{self._path} cannot be written ({error.strerror}); training continues without it."
                )
            return
        if self._failing:
            self._failing = False
            self._warnings.append(f"{self._path} is being written again.")

    def _next_line(self) -> bytes | None:
        with self._pending_lock:
            return self._pending.popleft() if self._pending else None

    def _put_back(self, line: bytes) -> None:
        """Make `line` the next one again unless newer rows fill the memory."""
        with self._pending_lock:
            if len(self._pending) < _MAX_PENDING:
                self._pending.appendleft(line)

    def _open(self) -> int:
        if self._handle is None:
            handle = os.open(
                self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644
            )
            try:
                _truncate(handle, self._resume)
            except BaseException:
                os.close(handle)
                raise
            # If the file is opened again later, rows written since then must not be cut.
            self._handle, self._resume = handle, None
        return self._handle


def _append(handle: int, line: bytes) -> None:
    """Write the complete line or nothing: half a line would also damage the next one."""
    size = os.fstat(handle).st_size
    try:
        done = 0
        while done < len(line):
            done += os.write(handle, line[done:])
    except OSError:
        os.ftruncate(handle, size)
        raise


def _truncate(handle: int, resume: tuple[int, int] | None) -> None:
    """Cut the file before the first row beyond the counters or before an incomplete last line."""
    valid = 0
    with open(os.dup(handle), "rb") as file:
        file.seek(0)
        for line in file:
            if not line.endswith(b"\n") or _beyond(line, resume):
                break
            valid += len(line)
        size = os.fstat(handle).st_size
    if valid < size:
        os.ftruncate(handle, valid)


def _beyond(line: bytes, resume: tuple[int, int] | None) -> bool:
    if resume is None:
        return False
    try:
        row = json.loads(line)
        return bool(row["env_steps"] > resume[0] or row["updates"] > resume[1])
    except (ValueError, TypeError, KeyError, RecursionError):
        return False  # readers skip a damaged line in the middle; the rows after it stay


def _json_value(value: Any) -> Any:  # noqa: ANN401 - one JSON leaf
    if hasattr(value, "item"):  # a 0-d tensor or a NumPy number
        try:
            value = value.item()
        except (ValueError, RuntimeError):  # a tensor of several numbers is no metric
            return None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
