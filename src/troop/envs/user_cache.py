"""The per-user cache directory, for files that Troop can compute again."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def user_cache_dir() -> Path:
    """Return `$XDG_CACHE_HOME/troop`, or `~/.cache/troop` if the variable is unset; may not exist yet."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "troop"


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to a temporary file and rename it to `path`: readers never see a partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
