"""StatusLine: what a command that prints its result at the end does meanwhile."""

from __future__ import annotations

import sys
import threading
import time
from typing import Self, TextIO

from troop.logs.progress import duration, printable

TERMINAL_INTERVAL_S = 0.5
PIPE_INTERVAL_S = 5.0


class StatusLine:
    """Prints the newest text of `update` with the time that has passed, to standard error.

    A terminal shows one line that is rewritten and erased at the end. A file or a pipe gets a line every five
    seconds, so that a command that ends earlier prints none. A thread prints while the command computes.
    """

    def __init__(self, text: str, stream: TextIO | None = None, interval_s: float | None = None) -> None:
        self._text, self._stream = text, stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._interval_s = interval_s or (TERMINAL_INTERVAL_S if self._terminal else PIPE_INTERVAL_S)
        self._start, self._ended = time.monotonic(), threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._print_until_end, daemon=True)

    def update(self, text: str) -> None:
        """Replace the text; it is printed at the next interval."""
        self._text = text

    def print(self, text: str, stream: TextIO | None = None) -> None:
        """Print a line of the result to `stream`, by default standard output; a terminal shows it alone."""
        with self._lock:
            if self._terminal:
                self._write("\r\x1b[2K")
            print(text, file=stream or sys.stdout, flush=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._terminal:
            self._write("\r\x1b[2K")

    def _print_until_end(self) -> None:
        while not self._ended.wait(self._interval_s):
            line = f"{printable(self._text)} ({duration(time.monotonic() - self._start)})"
            with self._lock:
                self._write(f"\r\x1b[2K{line}" if self._terminal else f"{line}\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # closed: the command goes on
            self._ended.set()
