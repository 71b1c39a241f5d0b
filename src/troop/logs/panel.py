"""The live panel: a run in a few lines, as many as the terminal has, from sixty columns up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from troop.logs.progress import Progress, count, duration, number, printable, sparkline
from troop.logs.roles_table import Styled, bar, flow_lines, role_lines

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_LABEL = 11  # columns of the names on the left, with their gap
_LEAST = 8  # lines that are drawn on any terminal
_ROLES = 5  # kinds of roles that are shown on any terminal


@dataclass(frozen=True)
class _Line:
    label: str
    text: Text
    spare: int = 0  # where lines are few those with the largest go first; with 0, never


def panel(
    title: str, subtitle: str, progress: Progress, width: int, height: int | None = None
) -> RenderableType:
    """Draw the run for a terminal of `width` columns and, if that is known, `height` lines."""
    from rich import box
    from rich.panel import Panel
    from rich.table import Table

    inside = max(20, min(width, 110) - 6)
    rows = Table.grid(padding=0)
    rows.add_column(width=_LABEL, style="dim", no_wrap=True)
    rows.add_column(width=inside - _LABEL, no_wrap=True, overflow="ellipsis")
    lines = _lines(progress, inside - _LABEL)
    # Borders and the cursor take three; what does not fit would be cut off at the bottom, the best part.
    for line in lines if height is None else _fitted(lines, height - 3):
        rows.add_row(line.label, line.text)
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


def _fitted(lines: list[_Line], most: int) -> list[_Line]:
    kept = list(lines)
    while len(kept) > max(most, _LEAST):
        spare = max(range(len(kept)), key=lambda i: (kept[i].spare, i))
        if not kept[spare].spare:
            break
        del kept[spare]
    return kept


def _words(*parts: Styled) -> Text:
    from rich.text import Text

    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _lines(progress: Progress, width: int) -> list[_Line]:
    blank = _Line("", _words(), spare=9)
    lines = [_Line("progress", _progress(progress, width)), blank, _Line("return", _return(progress))]
    if len(progress.history) > 1:
        lines.append(_Line("", _words((sparkline(progress.history, width), "green")), spare=5))
    if progress.episode_return is not None:
        recent = _words((number(progress.episode_return), ""), ("  recent episodes", "dim"))
        lines.append(_Line("training", recent, spare=3))
    lines.append(blank)
    lines.append(_Line("env steps", _rate(progress.env_steps, progress.env_steps_per_s)))
    lines.append(_Line("updates", _rate(progress.updates, progress.updates_per_s)))
    lines.append(_Line("time", _time(progress), spare=2))
    lines += [_Line(label, _words(*parts)) for label, parts in flow_lines(progress.flow, width)]
    lines += _losses(progress.losses, width, most=1 if progress.roles else 3)
    lines += _roles(progress, width)
    lines.append(_Line("health", _health(progress.counters)))
    return lines


def _roles(progress: Progress, width: int) -> list[_Line]:
    if not progress.roles:
        return []
    lines = [_Line("", _words(), spare=9)]
    for i, (label, parts) in enumerate(role_lines(progress.roles, width)):
        lines.append(_Line(label, _words(*parts), spare=0 if i <= _ROLES else 6))
    if progress.bottleneck:
        where, _, why = printable(progress.bottleneck).partition(": ")
        style = "green" if where == "none" else "bold yellow"
        lines.append(_Line("bottleneck", _words((where, style), (f": {why}" if why else "", ""))))
    return lines


def _progress(progress: Progress, width: int) -> Text:
    if progress.fraction is None:
        return _words(("no end set", "dim"))
    left = "done" if progress.fraction >= 1 else f"{duration(progress.seconds_left)} left"
    said = f"  {min(1.0, max(0.0, progress.fraction)):>4.0%}  {left:>12}"
    return _words(*bar(progress.fraction, max(5, width - len(said)), "bold cyan"), (said, ""))


def _return(progress: Progress) -> Text:
    if progress.return_mean is None:
        return _words(("no evaluation yet", "dim"))
    reached = progress.target is not None and progress.return_mean >= progress.target
    parts = [(number(progress.return_mean), "bold green" if reached else "bold")]
    if progress.return_std is not None:
        parts.append((f" ± {number(progress.return_std)}", ""))
    if progress.human_normalized is not None:
        parts += [(f"   {progress.human_normalized:.0f}%", "bold"), (" of human", "dim")]
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


def _losses(losses: dict[str, float], width: int, most: int) -> list[_Line]:
    """Lay out name and value pairs in columns, `most` lines of them."""
    cell = 21
    each = max(1, width // cell)
    shown = list(losses.items())[: each * most]
    lines = []
    for start in range(0, len(shown), each):
        parts: list[Styled] = []
        for name, value in shown[start : start + each]:
            spelled = number(value)
            room = cell - 3 - len(spelled)
            named = printable(name)
            named = named if len(named) <= room else named[: room - 1] + "…"
            parts += [(named + " ", "dim"), (spelled.ljust(cell - 1 - len(named)), "")]
        lines.append(_Line("" if start else "losses", _words(*parts), spare=8 if start else 4))
    return lines


def _health(counters: dict[str, int]) -> Text:
    wrong = [f"{printable(name)} {value}" for name, value in counters.items() if value]
    return _words((", ".join(wrong), "yellow")) if wrong else _words(("all well", "green"))
