"""The live panel: a run in at most twenty lines, at any width from sixty columns up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from troop.logs.progress import Progress, count, duration, number, printable, sparkline

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_LABEL = 11  # columns of the names on the left, with their gap


def panel(title: str, subtitle: str, progress: Progress, width: int) -> RenderableType:
    """Draw the run for a terminal of `width` columns."""
    from rich import box
    from rich.panel import Panel
    from rich.table import Table

    inside = max(20, min(width, 110) - 6)
    rows = Table.grid(padding=0)
    rows.add_column(width=_LABEL, style="dim", no_wrap=True)
    rows.add_column(width=inside - _LABEL, no_wrap=True, overflow="ellipsis")
    for name, line in _lines(progress, inside - _LABEL):
        rows.add_row(name, line)
    return Panel(
        rows,
        box=box.ROUNDED,
        title=_words((printable(title), "bold cyan")),
        title_align="left",
        subtitle=_words((printable(subtitle), "dim")) if subtitle else None,
        subtitle_align="right",
        border_style="cyan",
        padding=(0, 2),
        width=inside + 6,
    )


def _words(*parts: tuple[str, str]) -> Text:
    from rich.text import Text

    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _lines(progress: Progress, width: int) -> list[tuple[str, Text]]:
    lines = [("progress", _progress(progress, width)), ("", _words())]
    lines.append(("return", _return(progress)))
    if len(progress.history) > 1:
        lines.append(("", _words((sparkline(progress.history, width), "green"))))
    if progress.episode_return is not None:
        lines.append(
            ("training", _words((number(progress.episode_return), ""), ("  recent episodes", "dim")))
        )
    lines.append(("", _words()))
    lines.append(("env steps", _rate(progress.env_steps, progress.env_steps_per_s)))
    lines.append(("updates", _rate(progress.updates, progress.updates_per_s)))
    lines.append(("time", _time(progress)))
    if progress.replay_capacity > 0:
        lines.append(("replay", _replay(progress, width)))
    lines += _losses(progress.losses, width)
    lines.append(("health", _health(progress.counters)))
    return lines


def _bar(fraction: float, width: int, style: str) -> list[tuple[str, str]]:
    full = round(max(0.0, min(1.0, fraction)) * width)
    return [("━" * full, style), ("╌" * (width - full), "grey37")]


def _progress(progress: Progress, width: int) -> Text:
    if progress.fraction is None:
        return _words(("no end set", "dim"))
    left = "done" if progress.fraction >= 1 else f"{duration(progress.seconds_left)} left"
    said = f"  {min(1.0, max(0.0, progress.fraction)):>4.0%}  {left:>12}"
    return _words(*_bar(progress.fraction, max(5, width - len(said)), "bold cyan"), (said, ""))


def _return(progress: Progress) -> Text:
    if progress.return_mean is None:
        return _words(("no evaluation yet", "dim"))
    reached = progress.target is not None and progress.return_mean >= progress.target
    parts = [(number(progress.return_mean), "bold green" if reached else "bold")]
    if progress.return_std is not None:
        parts.append((f" ± {number(progress.return_std)}", ""))
    if progress.best is not None:
        parts += [("   best ", "dim"), (number(progress.best), "")]
    if progress.target is not None:
        mark = " ✓" if reached else ""
        parts += [("   target ", "dim"), (number(progress.target) + mark, "green" if reached else "")]
    return _words(*parts)


def _rate(total: int, rate: float) -> Text:
    return _words((f"{count(total):<6}", "bold"), (f"   {count(rate)}/s", ""))


def _time(progress: Progress) -> Text:
    parts = [(duration(progress.wall_s), "bold"), (" training", "dim")]
    if progress.evaluation_s > 0:
        parts += [("   " + duration(progress.evaluation_s), ""), (" evaluating", "dim")]
    return _words(*parts)


def _replay(progress: Progress, width: int) -> Text:
    said = f"  {count(progress.replay_rows)} of {count(progress.replay_capacity)} rows"
    length = max(5, min(24, width - len(said)))
    return _words(*_bar(progress.replay_rows / progress.replay_capacity, length, "blue"), (said, ""))


def _losses(losses: dict[str, float], width: int, most: int = 3) -> list[tuple[str, Text]]:
    """Lay out name and value pairs in columns, `most` lines of them."""
    cell = 21
    each = max(1, width // cell)
    shown = list(losses.items())[: each * most]
    lines = []
    for start in range(0, len(shown), each):
        parts: list[tuple[str, str]] = []
        for name, value in shown[start : start + each]:
            spelled = number(value)
            room = cell - 3 - len(spelled)
            named = printable(name)
            named = named if len(named) <= room else named[: room - 1] + "…"
            parts += [(named + " ", "dim"), (spelled.ljust(cell - 1 - len(named)), "")]
        lines.append(("" if start else "losses", _words(*parts)))
    return lines


def _health(counters: dict[str, int]) -> Text:
    wrong = [f"{printable(name)} {value}" for name, value in counters.items() if value]
    return _words((", ".join(wrong), "yellow")) if wrong else _words(("all well", "green"))
