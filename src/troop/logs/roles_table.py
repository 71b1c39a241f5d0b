"""The lower half of the panel: a line for each kind of role, and what flows between them."""

from __future__ import annotations

from collections.abc import Sequence

from troop.logs.progress import count, duration, number, printable, size
from troop.logs.topology import Flow, Group

Styled = tuple[str, str]
"""Words and the style they are written in."""
Row = tuple[str, list[Styled]]
"""What stands on the left, and the rest of the line."""

_LABEL = 10
_SHARES = 18  # columns of the three percentages
_WORKING, _WAITING, _BLOCKED, _IDLE = ("█", "green"), ("▒", "yellow"), ("▓", "red"), ("·", "grey37")


def label(role: Group) -> str:
    """The node's name, or how many there are of a kind: `actor x32`."""
    return printable(role.name if role.count == 1 else f"{role.kind} x{role.count}")


def bar(fraction: float, width: int, style: str) -> list[Styled]:
    """A bar that is full as far as `fraction`."""
    full = round(max(0.0, min(1.0, fraction)) * width)
    return [("━" * full, style), ("╌" * (width - full), "grey37")]


def role_lines(roles: Sequence[Group], width: int) -> list[Row]:
    """A head and a line for each kind: steps a second, queue, and how their time was spent.

    Of several roles the rate is that of all, then that of each with smallest and largest; shares are means.
    """
    several, wide = any(role.count > 1 for role in roles), width >= 85
    each = (19 if wide else 15) if several and width >= 60 else 0
    queue = 12 if width >= 60 else 6
    spread = 10 if several and wide else 0
    length = min(30, width - 8 - each - queue - 2 - _SHARES - spread)
    head = f"{'steps/s':>8}{'each':>{each}}" if each else f"{'steps/s':>8}"
    shares = f"{'busy':>6}{'wait':>6}{'block':>6}" + (f"{'busy each':>{spread}}" if spread else "")
    lines: list[Row] = [("role", [(f"{head}{'queue':>{queue}}  {'':{length}}{shares}", "dim")])]
    for role in roles:
        parts: list[Styled] = [(f"{_rate(role.rate.total):>8}", "bold")]
        parts.append((f"{_each(role):>{each}}" if each else "", ""))
        parts.append((f"{_queue(role, queue - 1):>{queue}}  ", "" if role.queue else "dim"))
        parts += _time_bar(role, length) + _percents(role)
        parts.append((f"{_range(role):>{spread}}" if spread else "", "dim"))
        name = label(role)
        lines.append((name if len(name) <= _LABEL else name[: _LABEL - 1] + "…", parts))
    return lines


def _rate(value: float) -> str:
    return count(value) if value else "-"  # who only serves takes no steps


def _each(role: Group) -> str:
    rate = role.rate
    return (
        f"{count(rate.mean)} ({count(rate.low)}-{count(rate.high)})" if role.count > 1 and rate.high else ""
    )


def _range(role: Group) -> str:
    return f"{100 * role.busy.low:.0f}-{100 * role.busy.high:.0f}%" if role.count > 1 else ""


def _queue(role: Group, width: int) -> str:
    spelled = f"{count(role.queue)} {size(role.queue_bytes)}"
    return spelled if role.queue_bytes and len(spelled) <= width else count(role.queue)


def _time_bar(role: Group, width: int) -> list[Styled]:
    parts, done, end = [], 0.0, 0
    for spread, (mark, style) in zip(
        (role.busy, role.waiting, role.blocked), (_WORKING, _WAITING, _BLOCKED), strict=True
    ):
        done = min(1.0, done + max(0.0, spread.mean))
        start, end = end, round(done * width)
        parts.append((mark * (end - start), style))
    return [*parts, (_IDLE[0] * (width - end), _IDLE[1])]


def _percents(role: Group) -> list[Styled]:
    shares = ((role.busy, _WORKING), (role.waiting, _WAITING), (role.blocked, _BLOCKED))
    return [(f"{x.mean:>6.0%}", style if round(x.mean, 2) else "dim") for x, (_, style) in shares]


def flow_lines(flow: Flow, width: int) -> list[Row]:
    """Fill and age of the replay; policy lag and samples per insert; ratios; what became of gradients."""
    lines: list[Row] = []
    if flow.capacity > 0:
        said = f"  {count(flow.rows)} of {count(flow.capacity)} rows"
        said += "" if flow.age_s is None else f", {duration(flow.age_s)} old"
        length = max(5, min(24, width - len(said)))
        lines.append(("replay", [*bar(flow.rows / flow.capacity, length, "blue"), (said, "")]))
    parts: list[Styled] = []
    if flow.lag is not None:
        parts += [(count(round(flow.lag)), "bold"), (" updates behind", "dim")]
    if flow.had is not None:
        parts += [("   " if parts else "", ""), (number(round(flow.had, 2)), "bold")]
        wanted = f" of {number(flow.wanted)}" if flow.wanted else ""
        parts += [(wanted, ""), (" samples/insert", "dim"), ("" if flow.wanted else ", free", "dim")]
    if parts:
        lines.append(("policy" if flow.lag is not None else "ratio", parts))
    if flow.ratios is not None:
        lines.append(("ratios", _ratios(flow.ratios)))
    if flow.gradients is not None:
        lines.append(("gradients", _gradients(flow.gradients)))
    return lines


def _ratios(told: dict[str, float]) -> list[Styled]:
    parts: list[Styled] = []
    for name, unit in (("beta_av", "critic updates/step"), ("beta_pv", "per policy update")):
        wanted = told.get(f"ratio/{name}_wanted")
        parts += [("   " if parts else "", ""), (number(round(told[f"ratio/{name}"], 2)), "bold")]
        parts += [(f" of {number(wanted)}" if wanted else "", ""), (f" {unit}", "dim")]
    return parts if "ratio/beta_av_wanted" in told else [*parts, (", free", "dim")]


def _gradients(told: dict[str, float]) -> list[Styled]:
    parts: list[Styled] = [(count(told["applied"]), "bold"), (" applied", "dim")]
    for what in ("dropped_stale", "dropped_outlier"):
        parts += [(f"   {count(told[what])}", ""), (f" {what[8:]}", "dim")]
    return [*parts, (f"   {number(round(told['delay'], 2))}", ""), (" steps late", "dim")]
