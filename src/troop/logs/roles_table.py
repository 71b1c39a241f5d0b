"""The lower half of the panel: one line for each group of roles, and the data flow between them."""

from __future__ import annotations

from collections.abc import Sequence

from troop.logs.flow import Flow, RatioReading
from troop.logs.progress import count, duration, number, printable, size
from troop.logs.topology import RoleGroup

StyledText = tuple[str, str]
"""A piece of text and its rich style."""
LabeledLine = tuple[str, list[StyledText]]
"""The label on the left, and the rest of the line."""

_LABEL_WIDTH = 10
_SHARES_WIDTH = 18  # columns of the three percentages
_USAGE_WIDTH = 13  # columns of CPU and memory
_WORKING, _WAITING, _BLOCKED, _IDLE = ("█", "green"), ("▒", "yellow"), ("▓", "red"), ("·", "grey37")


def label(role: RoleGroup) -> str:
    """The node's name, or the name and size of a group: `actor x32`."""
    return printable(role.name if role.count == 1 else f"{role.name} x{role.count}")


def bar(fraction: float, width: int, style: str) -> list[StyledText]:
    """A progress bar of `width` columns."""
    full = round(max(0.0, min(1.0, fraction)) * width)
    return [("━" * full, style), ("╌" * (width - full), "grey37")]


def role_lines(roles: Sequence[RoleGroup], width: int) -> list[LabeledLine]:
    """A header and one line for each group: steps per second, queue, shares of time, CPU and memory.

    For a group of several roles rate, CPU and memory are sums, the rate followed by mean, minimum and
    maximum; shares are means.
    """
    several, wide = any(role.count > 1 for role in roles), width >= 85
    each = 19 if several and wide else 0
    queue = 12 if width >= 60 else 6
    spread = 10 if several and wide else 0
    usage = _USAGE_WIDTH if width >= 60 else 0
    length = min(30, width - 8 - each - queue - 2 - _SHARES_WIDTH - spread - usage)
    header = f"{'steps/s':>8}{'each':>{each}}" if each else f"{'steps/s':>8}"
    shares = f"{'busy':>6}{'wait':>6}{'block':>6}" + (f"{'busy each':>{spread}}" if spread else "")
    shares += f"{'cores':>6}{'memory':>7}" if usage else ""
    lines: list[LabeledLine] = [("role", [(f"{header}{'queue':>{queue}}  {'':{length}}{shares}", "dim")])]
    for role in roles:
        parts: list[StyledText] = [(f"{_rate(role.rate.total):>8}", "bold")]
        parts.append((f"{_each(role):>{each}}" if each else "", ""))
        parts.append((f"{_queue(role, queue - 1):>{queue}}  ", "" if role.queue else "dim"))
        parts += _time_bar(role, length) + _percentages(role)
        parts.append((f"{_range(role):>{spread}}" if spread else "", "dim"))
        parts.append((f"{role.cpu:>6.1f}{size(role.memory_bytes):>7}" if usage else "", ""))
        name = label(role)
        lines.append((name if len(name) <= _LABEL_WIDTH else name[: _LABEL_WIDTH - 1] + "…", parts))
    return lines


def _rate(value: float) -> str:
    return count(value) if value else "-"  # a passive role takes no steps


def _each(role: RoleGroup) -> str:
    rate = role.rate
    return (
        f"{count(rate.mean)} ({count(rate.low)}-{count(rate.high)})" if role.count > 1 and rate.high else ""
    )


def _range(role: RoleGroup) -> str:
    return f"{100 * role.busy.low:.0f}-{100 * role.busy.high:.0f}%" if role.count > 1 else ""


def _queue(role: RoleGroup, width: int) -> str:
    with_bytes = f"{count(role.queue)} {size(role.queue_bytes)}"
    return with_bytes if role.queue_bytes and len(with_bytes) <= width else count(role.queue)


def _time_bar(role: RoleGroup, width: int) -> list[StyledText]:
    parts, total, end = [], 0.0, 0
    for spread, (mark, style) in zip(
        (role.busy, role.waiting, role.blocked), (_WORKING, _WAITING, _BLOCKED), strict=True
    ):
        total = min(1.0, total + max(0.0, spread.mean))
        start, end = end, round(total * width)
        parts.append((mark * (end - start), style))
    return [*parts, (_IDLE[0] * (width - end), _IDLE[1])]


def _percentages(role: RoleGroup) -> list[StyledText]:
    shares = ((role.busy, _WORKING), (role.waiting, _WAITING), (role.blocked, _BLOCKED))
    return [(f"{x.mean:>6.0%}", style if round(x.mean, 2) else "dim") for x, (_, style) in shares]


def flow_lines(flow: Flow, width: int) -> list[LabeledLine]:
    """Fill and sample age of the replay; policy lag and samples per insert; ratios; gradient counts."""
    lines: list[LabeledLine] = []
    if flow.capacity > 0:
        fill = f"  {count(flow.rows)} of {count(flow.capacity)} rows"
        fill += "" if flow.sample_age_s is None else f", {duration(flow.sample_age_s)} old"
        length = max(5, min(24, width - len(fill)))
        lines.append(("replay", [*bar(flow.rows / flow.capacity, length, "blue"), (fill, "")]))
    parts: list[StyledText] = []
    if flow.policy_lag is not None:
        parts += [(count(round(flow.policy_lag)), "bold"), (" updates behind", "dim")]
    if flow.samples_per_insert is not None:
        target = flow.samples_per_insert_target
        parts += [("   " if parts else "", ""), (number(round(flow.samples_per_insert, 2)), "bold")]
        parts += [(f" of {number(target)}" if target else "", ""), (" samples/insert", "dim")]
        parts.append(("" if target else ", no target", "dim"))
    if parts:
        lines.append(("policy" if flow.policy_lag is not None else "ratio", parts))
    if flow.ratios:
        lines.append(("ratios", _ratios(flow.ratios)))
    if flow.gradients is not None:
        lines.append(("gradients", _gradients(flow.gradients)))
    return lines


def _ratios(ratios: Sequence[RatioReading]) -> list[StyledText]:
    parts: list[StyledText] = []
    for ratio in ratios:
        target = f" of {number(ratio.target)}" if ratio.target else ""
        parts += [("   " if parts else "", ""), (number(round(ratio.value, 2)), "bold")]
        parts += [(target, ""), (f" {ratio.unit}", "dim")]
    return parts if any(ratio.target for ratio in ratios) else [*parts, (", no target", "dim")]


def _gradients(counts: dict[str, float]) -> list[StyledText]:
    parts: list[StyledText] = [(count(counts["applied"]), "bold"), (" applied", "dim")]
    for reason in ("stale", "outlier"):
        parts += [(f"   {count(counts[f'dropped_{reason}'])}", ""), (f" {reason}", "dim")]
    return [*parts, (f"   {number(round(counts['delay'], 2))}", ""), (" steps late", "dim")]
