"""The run directory: its layout, its lock, its config."""

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


def default_path(recipe: str, env: str, seed: int, root: Path | None = None) -> Path:
    """Make a name that nothing has yet: `runs/<recipe>-<env>-<seed>-<time>`."""
    name = f"{recipe}-{env}-{seed}-{datetime.now():%Y%m%d-%H%M%S}"
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).lstrip(".")
    path = (root or Path("runs")) / plain
    number = 2
    while path.exists():
        path, number = path.with_name(f"{plain}-{number}"), number + 1
    return path


class RunDirectory:
    """A directory that holds one run; made by `create` or `open`, given back by `close`."""

    def __init__(self, path: Path, lock: locks.Lock | None = None) -> None:
        self.path = path
        self.checkpoints = path / CHECKPOINTS
        self.videos = path / VIDEOS
        self.metrics = path / METRICS
        self.summary = path / SUMMARY
        self._lock = lock

    @classmethod
    def create(cls, path: Path | str) -> Self:
        """Make a new run at `path`, locked; BadInput if it is in use, SetupProblem if the disk refuses."""
        path = _sane(path)
        try:
            _refuse_used(path)  # before the lock leaves a file in a directory that is not ours
            path.mkdir(parents=True, exist_ok=True)
            lock = locks.Lock(path)
            try:
                _refuse_used(path)  # and again, now that nobody else can be making it
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
        """Open the run at `path`, `lock`ed to go on writing it; BadInput if there is none or it is in use."""
        path = _sane(path)
        try:
            held = (path / CONFIG).is_file()
        except OSError as error:
            raise files.disk_problem("read", path, error) from error
        if not held:
            missing = "does not exist" if not path.exists() else f"has no {CONFIG}"
            raise BadInput(f"{path} is not a run directory: it {missing}; give the directory of a run.")
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

    def write_config(self, config: dict[str, Any]) -> None:
        """Keep the whole experiment as config.json."""
        files.write_json(self.path / CONFIG, config)

    def read_config(self) -> dict[str, Any]:
        """Return what `write_config` was given; BadInput if it cannot be read."""
        path = self.path / CONFIG
        try:
            return files.read_object(path)
        except OSError as error:
            raise BadInput(
                f"{path} cannot be read ({error.strerror}); restore it or start a new run."
            ) from error
        except ValueError as error:
            raise BadInput(f"{path} is damaged ({error}); restore it or start a new run.") from error


def _sane(path: Path | str) -> Path:
    if "\0" in str(path) or not str(path):
        raise BadInput("--run is not a path; give a directory name.")
    return Path(path)


def _refuse_used(path: Path) -> None:
    """Raise if something is there; an empty layout left by a start that failed may be taken."""
    if not path.exists():
        if path.is_symlink():
            raise SetupProblem(f"{path} is a link to nowhere; remove it or choose another --run.")
        return
    if not path.is_dir():
        raise BadInput(f"{path} is a file; choose another --run.")
    if (path / CONFIG).exists():
        raise BadInput(
            f"{path} already holds a run; resume it with `troop resume {path}` or choose another --run."
        )
    for entry in path.iterdir():
        empty = entry.name in (CHECKPOINTS, VIDEOS) and entry.is_dir() and not any(entry.iterdir())
        if entry.name != locks.NAME and not empty:
            raise BadInput(f"{path} is not empty and holds no run; choose another --run.")
