"""Lines of the user's own files in stacks and tracebacks: where the user can look, and fix something."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).resolve().parents[1])
_STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"]


def user_location(frames: Sequence[traceback.FrameSummary], fallback: bool = True) -> str:
    """Return `file.py, line 7` of the innermost frame in a file of the user; "" for an empty stack.

    A script that called Troop is not meant: the frame is inside of a frame of Troop if there is one. Without
    such a frame the result is the innermost frame of any file, or "" without `fallback`.
    """
    inside = next((i for i, frame in enumerate(frames) if frame.filename.startswith(_PACKAGE)), 0)
    own = [frame for frame in frames[inside:] if _is_user_file(frame.filename)]
    if not own and not (fallback and frames):
        return ""
    frame = (own or list(frames))[-1]
    return f"{Path(frame.filename).name}, line {frame.lineno}"


def _is_user_file(path: str) -> bool:
    foreign = (_PACKAGE, _STANDARD_LIBRARY, "<")  # <frozen importlib>, <string>: no file
    return not path.startswith(foreign) and "-packages" not in path


def describe_error(error: BaseException) -> str:
    """Return type, first line of the message and location: `ValueError: bad angle (reach.py, line 7)`."""
    message = (str(error).strip().splitlines() or ["no message"])[0]
    location = user_location(traceback.extract_tb(error.__traceback__))
    return f"{type(error).__name__}: {message}" + (f" ({location})" if location else "")


def thread_stack(thread_id: int) -> list[traceback.FrameSummary]:
    """Return the stack of a running thread, outermost frame first; empty if it has ended."""
    frame: FrameType | None = sys._current_frames().get(thread_id)
    return list(traceback.extract_stack(frame)) if frame is not None else []
