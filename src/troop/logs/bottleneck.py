"""Which part of a run holds the others up, from how each spends its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from troop.logs.topology import Flow, Group

FULL = 0.85  # a role busy for more than this share of its time has nothing left to give
SOME = 0.15  # a share of time worth speaking of
REST = 0.02  # who works less than this has been told to pause

_ACTING = ("actor", "runner", "collector")
_LEARNING = ("learner", "trainer", "bundle", "critic", "policy")
_JUDGING = ("evaluator",)  # works on schedule, and nobody waits for it


@dataclass(frozen=True)
class Bottleneck:
    """Where it is, and how one can tell."""

    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


def bottleneck(roles: Sequence[Group], flow: Flow, updates: int) -> Bottleneck | None:
    """Name what holds the run up after so many updates; None if nothing is known of any role.

    Who is held up has time left; who is not, and has none, holds up the others. Services (replay, parameter
    servers, whatever does not step) count by their fullest shard, since that one is waited for.
    """
    acting, learning = _busiest(roles, _ACTING), _busiest(roles, _LEARNING)
    if roles and at_rest(roles):
        return Bottleneck("none", "all roles are at rest")
    services = [role for role in roles if role.kind not in _ACTING + _LEARNING + _JUDGING]
    service = max(services, key=lambda role: role.busy.high, default=None)
    if acting is not None and learning is not None:
        return _between(acting, learning, service, flow, updates)
    alone = acting or learning
    if alone is None:
        return None if service is None else _around(service, None, flow)
    return _around(alone, service, flow)


def at_rest(roles: Sequence[Group]) -> bool:
    """Whether nobody works or waits: the run is held for a checkpoint or an evaluation, or has ended."""
    training = [role for role in roles if role.kind not in _JUDGING]
    return all(role.busy.high + role.waiting.high + role.blocked.high < REST for role in training)


def _busiest(roles: Sequence[Group], kinds: tuple[str, ...]) -> Group | None:
    """Of several kinds, which are held to each other, the one that sets the pace."""
    return max((role for role in roles if role.kind in kinds), key=lambda role: role.busy.mean, default=None)


def _around(alone: Group, service: Group | None, flow: Flow) -> Bottleneck:
    """One kind of role that does everything by itself, and perhaps a service all of them use."""
    if alone.busy.mean >= FULL:
        both = ", acting and learning in one" if alone.kind in _LEARNING else ""
        return Bottleneck(_name(alone), f"{_busy(alone)}{both}")
    if service is not None and _waits(alone) >= SOME:
        return Bottleneck(_name(service), f"{_busy(service)}, {_lack(alone)}")
    return _idle([alone], flow)


def _between(acting: Group, learning: Group, service: Group | None, flow: Flow, updates: int) -> Bottleneck:
    acts, learns = acting.busy.mean >= FULL, learning.busy.mean >= FULL
    held = "" if not flow.wanted else f" at {flow.wanted:g} samples/insert"
    if flow.ratios and (wanted := flow.ratios.get("ratio/beta_av_wanted")):
        held = f" at {wanted:g} critic updates/step"
    if service is not None and _jammed(acting, learning, service, flow):
        most = max((acting, learning), key=_waits)
        return Bottleneck(_name(service), f"{_busy(service)}, {_lack(most)}")
    if not updates and not learns:
        return Bottleneck(_name(acting), "the replay fills up before the first update")
    if acts and learns:
        return Bottleneck(
            f"{_name(acting)} and {_name(learning)}", "both work all the time; more cores would help both"
        )
    if learns or acting.blocked.mean >= SOME:
        return Bottleneck(_name(learning), f"{_busy(learning)}, {_lack(acting)}{held}")
    if flow.wanted == 0 and service is not None and learning.waiting.mean >= SOME:
        # Nobody holds batches back: those that are not there are late.
        return Bottleneck(_name(service), f"batches come late, {_lack(learning)}, {_busy(service)}")
    if acts and learning.free >= SOME:
        return Bottleneck(_name(acting), f"{_busy(acting)}, {_lack(learning)}{held}")
    return _idle([acting, learning], flow)


def _jammed(acting: Group, learning: Group, service: Group, flow: Flow) -> bool:
    """Whether the service is what the others wait for, and not the ratio that it keeps."""
    if acting.blocked.mean >= SOME:  # its mailbox is full, however busy it looks
        return True
    if service.busy.high < FULL:
        return False
    if not flow.wanted:
        return max(acting.free, learning.free) >= SOME
    return learning.free >= SOME and (acting.free >= SOME or (flow.had or 0.0) < 0.95 * flow.wanted)


def _idle(roles: Sequence[Group], flow: Flow) -> Bottleneck:
    """Nobody waits for anybody in particular."""
    said = ", ".join(f"{_name(role)} {role.busy.mean:.0%}" for role in roles)
    why = f"balanced at {flow.wanted:g} samples/insert" if flow.wanted else "nothing is full"
    return Bottleneck("none", f"{why}; {said}")


def _name(role: Group) -> str:
    return role.name if role.count == 1 else f"{role.kind}s"


def _busy(role: Group) -> str:
    share = role.busy.high if role.count > 1 and role.busy.high >= FULL > role.busy.mean else role.busy.mean
    return f"busy {share:.0%}"


def _waits(role: Group) -> float:
    return role.waiting.mean + role.blocked.mean


def _lack(role: Group) -> str:
    """What a role does instead of working."""
    verb = "" if role.count > 1 else "s"
    if role.blocked.mean >= max(SOME, role.waiting.mean):
        return f"{_name(role)} blocked {role.blocked.mean:.0%}"
    if role.waiting.mean >= SOME:
        return f"{_name(role)} wait{verb} {role.waiting.mean:.0%}"
    return f"{_name(role)} rest{verb} {role.free:.0%}"
