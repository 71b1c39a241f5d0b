"""The temporary folder of this process: sockets of the fork server, files of a local Ray, its token.

A process that is killed cannot remove its folder. Each holds a lock on a file in its own one, so that the
next process that needs a folder recognises and removes those whose owner has ended, whatever its pid.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import multiprocessing
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX, LOCK = "troop-", "owner.lock"


@functools.cache
def private_folder() -> Path:
    """Create the folder, readable by this user only, and remove those of processes that have ended."""
    remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # open until the end
    fcntl.flock(handle, fcntl.LOCK_EX)
    atexit.register(_remove_own, folder, os.getpid())
    return folder


def use_for_multiprocessing() -> None:
    """Let multiprocessing create the socket of its fork server in the private folder."""
    config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    config.setdefault("tempdir", str(private_folder()))


def delete_private_folder() -> None:
    """Remove the folder of this process, if it has one, without waiting for the exit handlers."""
    if private_folder.cache_info().currsize:
        shutil.rmtree(private_folder(), ignore_errors=True)


def remove_leftovers() -> None:
    """Remove the folders of this user whose owner no longer holds its lock."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # without a lock file it is not a folder of Troop
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: the owner lives
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)


def _remove_own(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child
        shutil.rmtree(folder, ignore_errors=True)
