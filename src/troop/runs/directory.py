"""The run directory: its files, its lock and config.json."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from troop.core.errors import BadInput, SetupProblem
from troop.runs import files
from troop.runs import lock as locks

CONFIG, METRICS, SUMMARY = "config.json", "metrics.jsonl", "summary.json"
CHECKPOINTS, VIDEOS = "checkpoints", "videos"
_LEFTOVER = re.compile(
    r"config\.json|summary\.json|error\.txt|events\.out\.tfevents\..*|\..*\.json\.\d+\.tmp"
)


def default_path(recipe: str, env: str, seed: int, root: Path | None = None) -> Path:
    """A path that does not exist yet: `runs/<recipe>-<env>-<seed>-<time>`."""
    name = f"{recipe}-{env}-{seed}-{datetime.now():%Y%m%d-%H%M%S}"
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).lstrip(".")
    path = (root or Path("runs")) / safe
    number = 2
    while path.exists():
        path, number = path.with_name(f"{safe}-{number}"), number + 1
    return path


class RunDirectory:
    """The directory of one run, opened by `create` or `open` and released by `close`."""

    def __init__(self, path: Path, lock: locks.Lock | None = None) -> None:
        self._lock = lock
        self._set_path(path)

    def _set_path(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / CHECKPOINTS
        self.videos = path / VIDEOS
        self.metrics = path / METRICS
        self.summary = path / SUMMARY

    @classmethod
    def create(cls, path: Path | str) -> Self:
        """Create and lock a new run directory; BadInput if `path` is in use, SetupProblem on a disk error."""
        path = _checked_path(path)
        try:
            _check_unused(path)  # before the lock creates a file in a directory of something else
            path.mkdir(parents=True, exist_ok=True)
            lock = locks.Lock(path)
            try:
                _check_unused(path)  # again, now that no other process can create it
                _remove_leftovers(path)
                for folder in (path / CHECKPOINTS, path / VIDEOS):
                    folder.mkdir(exist_ok=True)
            except BaseException:
                lock.release()
                raise
        except OSError as error:
            raise files.disk_problem("create the run directory", path, error) from error
        return cls(path, lock)

    @classmethod
    def open(cls, path: Path | str, lock: bool = False) -> Self:
        """Open the run at `path`, with a `lock` for writing; BadInput if there is no run or it is in use."""
        path = _checked_path(path)
        try:
            has_config = (path / CONFIG).is_file()
        except OSError as error:
            raise files.disk_problem("read", path, error) from error
        if not has_config:
            missing = "does not exist" if not path.exists() else f"has no {CONFIG}"
            raise BadInput(f"{path} is not a run directory: it {missing}; give the directory of a run.")
        if lock:
            files.reject_links(path, CHECKPOINTS, VIDEOS)
        return cls(path, locks.Lock(path) if lock else None)

    def close(self) -> None:
        """Release the lock; may be called twice."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def follow(self, config: dict[str, Any]) -> str:
        """Continue in the locked directory if it was renamed; create it again if it was removed.

        Returns a sentence if either has happened, else "". Raises SetupProblem if it cannot be created.
        """
        old = self.path
        if self._lock is None or self._lock.holds(old):
            return ""
        if (moved := self._lock.find()) is not None and self._lock.holds(moved):
            self._set_path(moved)
            return f"{old} was renamed during the run, which continues in {moved}"
        self._lock.release()
        try:
            for folder in (self.checkpoints, self.videos):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise files.disk_problem("create the run directory", old, error) from error
        self._lock = locks.Lock(old)
        self.write_config(config)
        return f"{old} was removed during the run; it was created again, without the metrics written before"

    def write_config(self, config: dict[str, Any]) -> None:
        """Write the experiment as config.json."""
        files.write_json(self.path / CONFIG, config)

    def read_config(self) -> dict[str, Any]:
        """Read config.json; BadInput if it cannot be read or is damaged."""
        path = self.path / CONFIG
        try:
            return files.read_object(path)
        except OSError as error:
            raise BadInput(
                f"{path} cannot be read ({error.strerror}); restore it or start a new run."
            ) from error
        except ValueError as error:
            raise BadInput(f"{path} is damaged ({error}); restore it or start a new run.") from error


def _checked_path(path: Path | str) -> Path:
    if "\0" in str(path) or not str(path):
        raise BadInput("--run is not a path; give a directory name.")
    return Path(path)


def _check_unused(path: Path) -> None:
    """Raise if `path` contains anything but what a start that failed has left."""
    if not path.exists():
        if path.is_symlink():
            raise SetupProblem(f"{path} is a broken link; remove it or choose another --run.")
        return
    if not path.is_dir():
        raise BadInput(f"{path} is a file; choose another --run.")
    used = next((entry for entry in path.iterdir() if not _is_leftover(entry)), None)
    if used is not None and (path / CONFIG).exists():
        raise BadInput(
            f"{path} already holds a run; resume it with `troop resume {path}` or choose another --run."
        )
    if used is not None:
        raise BadInput(f"{path} is not empty and holds no run; choose another --run.")


def _is_leftover(entry: Path) -> bool:
    """Whether `entry` may be left by a start that ended before its first checkpoint.

    The first checkpoint is written before the first row of metrics, so a run with either is not one.
    """
    if entry.is_symlink():
        raise BadInput(f"{entry} is a link; a run directory must not contain links: remove it.")
    if entry.name == CHECKPOINTS and entry.is_dir():
        return all(inner.name.endswith(".tmp") for inner in entry.iterdir())
    if entry.name == VIDEOS and entry.is_dir():
        return not any(entry.iterdir())
    if entry.name == METRICS:
        return entry.is_file() and entry.stat().st_size == 0
    return entry.name == locks.NAME or bool(_LEFTOVER.fullmatch(entry.name))


def _remove_leftovers(path: Path) -> None:
    for entry in path.iterdir():
        if entry.name == METRICS or _LEFTOVER.fullmatch(entry.name):
            entry.unlink()
