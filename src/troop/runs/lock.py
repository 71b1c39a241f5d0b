"""One process at a time writes a run directory."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import warnings
from pathlib import Path

from troop.core.errors import BadInput
from troop.runs import files

NAME = "run.lock"
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class Lock:
    """Held from construction to `release` or the end of the process; BadInput if another holds it.

    The kernel owns the lock, so one left by a killed process is no obstacle, whatever pid the file names.
    """

    def __init__(self, run: Path) -> None:
        path = run / NAME
        try:
            self._handle: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise files.disk_problem("lock", run, error) from error
        try:
            self._take(run, self._handle)
        except BaseException:
            os.close(self._handle)
            self._handle = None
            raise

    def _take(self, run: Path, handle: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
            raise BadInput(
                f"{run} is in use by {holder}; wait for it, stop it, or choose another --run."
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise files.disk_problem("lock", run, error) from error
            warnings.warn(f"{run} is on a disk without locks; take care to use it once only.", stacklevel=4)
        try:
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        except OSError as error:
            raise files.disk_problem("lock", run, error) from error

    def release(self) -> None:
        """Let others have it; may be called twice. The file stays: removing it would race with them."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            os.close(handle)
