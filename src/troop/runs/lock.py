"""The lock that lets only one process write to a run directory."""

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
    """A file lock, held until `release` or the end of the process; BadInput if another process holds it.

    The kernel releases the lock of a killed process, even if the file still contains its process id.
    """

    def __init__(self, run: Path) -> None:
        path = run / NAME
        try:
            self._handle: int | None = os.open(
                path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644
            )
        except OSError as error:
            raise files.disk_problem("lock", path, error) from error
        try:
            self._acquire(run, self._handle)
        except BaseException:
            os.close(self._handle)
            self._handle = None
            raise

    def _acquire(self, run: Path, handle: int) -> None:
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
            warnings.warn(
                f"{run} is on a disk without file locks; do not use it in two processes at once.",
                stacklevel=4,
            )
        try:
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        except OSError as error:
            raise files.disk_problem("lock", run, error) from error

    def holds(self, run: Path) -> bool:
        """Whether `run` is still the directory whose file is locked."""
        try:
            return self._handle is not None and os.path.samestat(os.stat(run / NAME), os.fstat(self._handle))
        except OSError:
            return False

    def find(self) -> Path | None:
        """Return the directory in which the locked file is now; None if the file was removed."""
        try:
            if self._handle is None or not os.fstat(self._handle).st_nlink:
                return None
            return Path(os.readlink(f"/proc/self/fd/{self._handle}")).parent
        except OSError:  # no Linux
            return None

    def release(self) -> None:
        """Release the lock; may be called twice. The file stays, since removing it would be a race."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            os.close(handle)
