"""Progress of a run for a person: a live panel on a terminal, otherwise a plain line every few seconds."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TextIO

from troop.logs.progress import Progress, count, duration, number, printable, size
from troop.logs.roles_table import label

if TYPE_CHECKING:
    from rich.console import Console as Terminal

_PANEL_INTERVAL_S = 0.25
_LINE_INTERVAL_S = 5.0


class Console:
    """Prints the state of a run. Methods may be called in any order, and no output error stops training."""

    def __init__(
        self,
        stream: TextIO | None = None,
        terminal: Terminal | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream or sys.stdout
        self._terminal = terminal
        self._clock = clock
        self._live: Any = None
        self._title = self._subtitle = ""
        self._last: Progress | None = None
        self._pending = False
        self._drawn_at = -float("inf")

    @property
    def interactive(self) -> bool:
        """Whether the output is a terminal that can show a panel."""
        if self._terminal is not None:
            return self._terminal.is_terminal
        try:
            return self._stream.isatty() and os.environ.get("TERM") not in ("dumb", "")
        except ValueError:  # closed
            return False

    def start(self, title: str, subtitle: str = "", stage: str = "") -> None:
        """Print the title, e.g. `fasttd3 on WalkerWalk-v1` and `seed 0, runs/...`, or open the panel.

        Until the first `show` the panel contains the `stage` of the start.
        """
        self._title, self._subtitle = title, subtitle
        if not self.interactive:
            self._line(f"{title}  {subtitle}".rstrip())
            return
        self._open()
        self._draw_stage(stage)

    def show_stage(self, title: str, stage: str) -> None:
        """On a terminal, open the panel with a title and the present stage of the start."""
        if self.interactive:
            self._title = title
            self._open()
            self._draw_stage(stage)

    def discard(self) -> None:
        """Close a panel that shows no run yet and erase it; otherwise as `stop`."""
        if self._live is not None and self._last is None:
            self._live.transient = True
        self.stop()

    def _draw_stage(self, stage: str) -> None:
        from troop.logs.panel import stage_panel

        width = self._live.console.size.width
        drawing = stage_panel(self._title, self._subtitle, stage, width)
        self._guard(lambda: self._live.update(drawing, refresh=True))

    def _open(self) -> None:
        if self._live is None:
            from rich.console import Console as Terminal
            from rich.live import Live

            self._terminal = self._terminal or Terminal(file=self._stream)
            # By default rich exits the whole program when its pipe closes.
            self._terminal.on_broken_pipe = self._mute  # type: ignore[method-assign]
            self._live = Live(console=self._terminal, auto_refresh=False)
            self._guard(self._live.start)
            atexit.register(self.stop)  # rich hides the cursor until it stops

    def show(self, progress: Progress) -> None:
        """Draw the newest state, unless the last one was drawn less than the interval ago."""
        self._last, self._pending = progress, True
        now = self._clock()
        if now - self._drawn_at >= (_LINE_INTERVAL_S if self._live is None else _PANEL_INTERVAL_S):
            self._drawn_at = now
            self._draw()

    def note(self, text: str) -> None:
        """Print a line above the panel."""
        if self._live is None:
            self._line(text)
            return
        from rich.text import Text

        lines = "\n".join(map(printable, text.splitlines()))  # a traceback keeps its lines
        self._guard(lambda: self._live.console.print(Text(lines)))

    def stop(self) -> None:
        """Draw the last state, which stays on the screen; may be called twice."""
        if self._pending:
            self._draw()
        if self._live is not None:
            live, self._live = self._live, None
            atexit.unregister(self.stop)
            self._guard(live.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _draw(self) -> None:
        if self._last is None:
            return
        self._pending = False
        if self._live is None:
            self._line(line(self._last))
            return
        self._guard(lambda: self._live.update(self._panel(), refresh=True))

    def _panel(self) -> object:
        from troop.logs.panel import panel

        assert self._last is not None
        size = self._live.console.size
        return panel(self._title, self._subtitle, self._last, size.width, size.height)

    def _line(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        lines = "\n".join(map(printable, text.splitlines()))
        encodable = lines.encode(encoding, "replace").decode(encoding)
        self._guard(lambda: print(encodable, file=self._stream, flush=True))

    def _guard(self, write: Callable[[], object]) -> None:
        """Ignore errors of the terminal: a closed pipe or window must not end the run."""
        try:
            write()
        except OSError:
            self._mute()
        except Exception:
            return

    def _mute(self) -> None:
        """Stop drawing, because rich would buffer all output to a closed terminal in memory."""
        if self._terminal is not None:
            self._terminal.quiet = True


def line(progress: Progress) -> str:
    """The state of the run as one line of text."""
    parts = []
    if progress.fraction is not None:
        parts.append(f"{progress.fraction:4.0%} {duration(progress.seconds_left)} left")
    parts.append(f"{duration(progress.wall_s)}")
    parts.append(f"steps {count(progress.env_steps)} {count(progress.env_steps_per_s)}/s")
    parts.append(f"updates {count(progress.updates)} {count(progress.updates_per_s)}/s")
    if progress.return_mean is not None:
        spread = "" if progress.return_std is None else f" ± {number(progress.return_std)}"
        human = "" if progress.human_normalized is None else f" ({progress.human_normalized:.0f}% of human)"
        parts.append(f"return {number(progress.return_mean)}{spread}{human}")
    if progress.episode_return is not None:
        parts.append(f"training {number(progress.episode_return)}")
    parts += [f"{name} {number(value)}" for name, value in list(progress.losses.items())[:3]]
    parts += [f"{name} {value}" for name, value in progress.counters.items() if value]
    if progress.roles:
        busy = (f"{label(role)} {role.busy.mean:.0%}" for role in progress.roles)
        parts.append("busy " + ", ".join(busy))
    if progress.split:
        parts.append(" ".join(f"{name} {share:.0%}" for name, share in progress.split.items()))
    if progress.memory_bytes:
        parts.append(f"{progress.cpu or 0.0:.1f} cores {size(progress.memory_bytes)}")
    if progress.flow.policy_lag is not None:
        parts.append(f"lag {count(round(progress.flow.policy_lag))}")
    if progress.bottleneck:
        parts.append(f"bottleneck {progress.bottleneck}")
    return " | ".join(parts)
