"""The live panel of a run, fitted to the size of the terminal (at least 60 columns)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from troop.logs.progress import Progress, count, duration, number, printable, size, sparkline
from troop.logs.roles_table import StyledText, bar, flow_lines, role_lines

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_LABEL_WIDTH = 11  # columns of the labels on the left, with their gap
_MIN_LINES = 8  # drawn on any terminal
_MIN_ROLE_GROUPS = 5  # shown on any terminal


@dataclass(frozen=True)
class _PanelLine:
    label: str
    text: Text
    drop_order: int = 0  # on a small terminal the lines with the largest go first; 0: never


def panel(
    title: str, subtitle: str, progress: Progress, width: int, height: int | None = None
) -> RenderableType:
    """Draw the run for a terminal of `width` columns and, if the height is known, `height` lines."""
    lines = _lines(progress, _inside(width) - _LABEL_WIDTH)
    # Borders and the cursor take three lines; the terminal would cut off the bottom lines of a taller panel.
    return _framed(title, subtitle, lines if height is None else _fit(lines, height - 3), width)


def stage_panel(title: str, subtitle: str, stage: str, width: int) -> RenderableType:
    """Draw a run that starts, for a terminal of `width` columns."""
    return _framed(title, subtitle, [_PanelLine("starting", _text((printable(stage), "")))], width)


def _inside(width: int) -> int:
    return max(20, min(width, 110) - 6)


def _framed(title: str, subtitle: str, lines: list[_PanelLine], width: int) -> RenderableType:
    from rich import box
    from rich.panel import Panel
    from rich.table import Table

    inside = _inside(width)
    rows = Table.grid(padding=0)
    rows.add_column(width=_LABEL_WIDTH, style="dim", no_wrap=True)
    rows.add_column(width=inside - _LABEL_WIDTH, no_wrap=True, overflow="ellipsis")
    for line in lines:
        rows.add_row(line.label, line.text)
    return Panel(
        rows,
        box=box.ROUNDED,
        title=_text((printable(title), "bold cyan")),
        title_align="left",
        subtitle=_text((printable(subtitle), "dim")) if subtitle else None,
        subtitle_align="right",
        border_style="cyan",
        padding=(0, 2),
        width=inside + 6,
    )


def _fit(lines: list[_PanelLine], max_lines: int) -> list[_PanelLine]:
    shown = list(lines)
    while len(shown) > max(max_lines, _MIN_LINES):
        dropped = max(range(len(shown)), key=lambda i: (shown[i].drop_order, i))
        if not shown[dropped].drop_order:
            break
        del shown[dropped]
    return shown


def _text(*parts: StyledText) -> Text:
    from rich.text import Text

    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _lines(progress: Progress, width: int) -> list[_PanelLine]:
    blank = _PanelLine("", _text(), drop_order=9)
    lines = [
        _PanelLine("progress", _progress(progress, width)),
        blank,
        _PanelLine("return", _return(progress)),
    ]
    if len(progress.history) > 1:
        lines.append(_PanelLine("", _text((sparkline(progress.history, width), "green")), drop_order=5))
    if progress.episode_return is not None:
        recent = _text((number(progress.episode_return), ""), ("  recent episodes", "dim"))
        lines.append(_PanelLine("training", recent, drop_order=3))
    lines.append(blank)
    lines.append(_PanelLine("env steps", _rate(progress.env_steps, progress.env_steps_per_s)))
    lines.append(_PanelLine("updates", _rate(progress.updates, progress.updates_per_s)))
    lines.append(_PanelLine("time", _time(progress), drop_order=2))
    lines += [_PanelLine(label, _text(*parts)) for label, parts in flow_lines(progress.flow, width)]
    lines += _losses(progress.losses, width, max_lines=1 if progress.roles else 3)
    lines += _roles(progress, width)
    if progress.memory_bytes:
        lines.append(_PanelLine("process", _usage(progress), drop_order=1))
    lines.append(_PanelLine("health", _health(progress)))
    return lines


def _roles(progress: Progress, width: int) -> list[_PanelLine]:
    if not progress.roles and not progress.split:
        return []
    lines = [_PanelLine("", _text(), drop_order=9)]
    if progress.split:
        lines.append(_PanelLine("time split", _split(progress.split)))
    for i, (label, parts) in enumerate(role_lines(progress.roles, width) if progress.roles else []):
        lines.append(_PanelLine(label, _text(*parts), drop_order=0 if i <= _MIN_ROLE_GROUPS else 6))
    if progress.bottleneck:
        where, _, why = printable(progress.bottleneck).partition(": ")
        style = "green" if where == "none" else "bold yellow"
        lines.append(_PanelLine("bottleneck", _text((where, style), (f": {why}" if why else "", ""))))
    return lines


def _progress(progress: Progress, width: int) -> Text:
    if progress.fraction is None:
        return _text(("no limit set", "dim"))
    remaining = "done" if progress.fraction >= 1 else f"{duration(progress.seconds_left)} left"
    text = f"  {min(1.0, max(0.0, progress.fraction)):>4.0%}  {remaining:>12}"
    return _text(*bar(progress.fraction, max(5, width - len(text)), "bold cyan"), (text, ""))


def _return(progress: Progress) -> Text:
    if progress.return_mean is None:
        return _text(("no evaluation yet", "dim"))
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
    return _text(*parts)


def _rate(total: int, rate: float) -> Text:
    return _text((f"{count(total):<6}", "bold"), (f"   {count(rate)}/s", ""))


def _time(progress: Progress) -> Text:
    parts = [(duration(progress.wall_s), "bold"), (" training", "dim")]
    if progress.evaluation_s > 0:
        parts += [("   " + duration(progress.evaluation_s), ""), (" evaluating", "dim")]
    return _text(*parts)


def _losses(losses: dict[str, float], width: int, max_lines: int) -> list[_PanelLine]:
    """Name and value pairs in columns of 21 characters."""
    cell = 21
    columns = max(1, width // cell)
    shown = list(losses.items())[: columns * max_lines]
    lines = []
    for start in range(0, len(shown), columns):
        parts: list[StyledText] = []
        for name, value in shown[start : start + columns]:
            digits = number(value)
            max_name = cell - 3 - len(digits)
            label = printable(name)
            label = label if len(label) <= max_name else label[: max_name - 1] + "…"
            parts += [(label + " ", "dim"), (digits.ljust(cell - 1 - len(label)), "")]
        lines.append(_PanelLine("" if start else "losses", _text(*parts), drop_order=8 if start else 4))
    return lines


def _split(split: dict[str, float]) -> Text:
    largest = max(split, key=split.__getitem__)
    parts: list[StyledText] = []
    for name, share in split.items():
        parts += [(f"{name} ", "dim"), (f"{share:.0%}".ljust(6), "bold" if name == largest else "")]
    return _text(*parts)


def _usage(progress: Progress) -> Text:
    memory = size(progress.memory_bytes or 0.0)
    return _text(
        (f"{progress.cpu or 0.0:.1f}", ""), (" cores   ", "dim"), (memory, ""), (" of memory", "dim")
    )


def _health(progress: Progress) -> Text:
    problems = [f"{printable(name)} {value}" for name, value in progress.counters.items() if value]
    problems += [f"memory of {printable(name)} grows" for name in progress.growing]
    return _text((", ".join(problems), "yellow")) if problems else _text(("no faults", "green"))
