"""Which role, or which part of a single thread, limits the speed of a run, from shares of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from troop.logs.flow import Flow
from troop.logs.topology import RoleGroup, group_name

BUSY_THRESHOLD = 0.85  # a role that is busy for a larger share of its time cannot do more
NOTABLE = 0.15  # the smallest share of time that counts as waiting or idle
PAUSED = 0.02  # a role that is busy for a smaller share has been paused by the engine
LARGE_PART = 0.4  # the smallest share of one thread's time that is called a bottleneck

_LEARNING = ("learning", "training")


@dataclass(frozen=True)
class Bottleneck:
    """The limiting role or roles, and the shares of time that show it."""

    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


def bottleneck(roles: Sequence[RoleGroup], flow: Flow, updates: int) -> Bottleneck | None:
    """The role that limits the run after this many updates; None if the engine reports no roles.

    A role is the bottleneck if it is busy and its callers are waiting. Passive nodes (replay, parameter
    servers) count by their busiest member, because callers wait for the slowest one.
    """
    acting, learning = _busiest(roles, ("acting",)), _busiest(roles, _LEARNING)
    if roles and paused(roles):
        return Bottleneck("none", "all roles are paused")
    servers = [role for role in roles if role.kind in ("storing", "serving")]
    if acting is None and learning is None:
        server = max(servers, key=lambda role: role.busy.high, default=None)
        return None if server is None else _of_one(server, None, flow)
    callees = set().union(*(role.calls for role in roles if role.kind in ("acting", *_LEARNING)))
    called = [role for role in servers if group_name(role.name) in callees]
    server = max(called, key=lambda role: role.busy.high, default=None)
    if acting is not None and learning is not None:
        return _of_two(acting, learning, server, flow, updates)
    only = acting or learning
    assert only is not None
    return _of_one(only, server, flow)


def time_split(
    act_s: float, env_s: float, learn_s: float, evaluation_s: float, total_s: float
) -> dict[str, float]:
    """Return the shares of `total_s` of one thread: act, env, learn, evaluate, other; empty if none is known.

    `evaluate` includes checkpoints.
    """
    seconds = {"act": act_s, "env": env_s, "learn": learn_s, "evaluate": evaluation_s}
    total_s = max(total_s, sum(seconds.values()))
    if act_s + env_s + learn_s <= 0:
        return {}
    shares = {name: value / total_s for name, value in seconds.items()}
    return shares | {"other": max(0.0, 1.0 - sum(shares.values()))}


def split_bottleneck(split: Mapping[str, float], updates: int) -> Bottleneck | None:
    """The part that takes most of the time of one thread after this many updates; None without a split."""
    if not split:
        return None
    (name, share), *rest = sorted(split.items(), key=lambda item: -item[1])
    others = ", ".join(f"{part} {value:.0%}" for part, value in rest if value >= 0.05)
    if share < LARGE_PART:
        return Bottleneck("none", f"{name} {share:.0%}, {others}")
    if not updates and name != "learn":
        return Bottleneck(name, f"{share:.0%} of the time; data are collected before the first update")
    return Bottleneck(name, f"{share:.0%} of the time" + (f", {others}" if others else ""))


def paused(roles: Sequence[RoleGroup]) -> bool:
    """Whether no role works or waits: the engine saves or evaluates, or the run has ended."""
    training = [role for role in roles if role.kind != "evaluating"]
    return all(role.busy.high + role.waiting.high + role.blocked.high < PAUSED for role in training)


def _busiest(roles: Sequence[RoleGroup], kinds: tuple[str, ...]) -> RoleGroup | None:
    """Groups of one kind keep pace with each other, so the busiest one sets the pace."""
    return max((role for role in roles if role.kind in kinds), key=lambda role: role.busy.mean, default=None)


def _of_one(only: RoleGroup, server: RoleGroup | None, flow: Flow) -> Bottleneck:
    """The bottleneck of a system with one stepping group, and perhaps a server that all its members call."""
    if only.busy.mean >= BUSY_THRESHOLD:
        both = ", it acts and learns in turn" if only.kind == "training" else ""
        return Bottleneck(_name(only), f"{_busy(only)}{both}")
    if server is not None and _stalled(only) >= NOTABLE:
        return Bottleneck(_name(server), f"{_busy(server)}, {_idle_time(only)}")
    return _none([only], flow)


def _of_two(
    acting: RoleGroup, learning: RoleGroup, server: RoleGroup | None, flow: Flow, updates: int
) -> Bottleneck:
    actor_full, learner_full = acting.busy.mean >= BUSY_THRESHOLD, learning.busy.mean >= BUSY_THRESHOLD
    if server is not None and _server_limits(acting, learning, server, flow):
        caller = max((acting, learning), key=_stalled)
        return Bottleneck(_name(server), f"{_busy(server)}, {_idle_time(caller)}")
    if not updates and not learner_full:
        return Bottleneck(_name(acting), "data are collected before the first update")
    if actor_full and learner_full:
        names = f"{_name(acting)} and {_name(learning)}"
        return Bottleneck(names, "both are busy all the time; more cores would speed up both")
    if learner_full or acting.blocked.mean >= NOTABLE:
        return Bottleneck(_name(learning), f"{_busy(learning)}, {_idle_time(acting)}{flow.limit}")
    free_running = flow.samples_per_insert_target == 0  # no limiter holds batches back: they arrive late
    if free_running and server is not None and learning.waiting.mean >= NOTABLE:
        return Bottleneck(_name(server), f"batches arrive late, {_idle_time(learning)}, {_busy(server)}")
    if actor_full and learning.free >= NOTABLE:
        return Bottleneck(_name(acting), f"{_busy(acting)}, {_idle_time(learning)}{flow.limit}")
    return _none([acting, learning], flow)


def _server_limits(acting: RoleGroup, learning: RoleGroup, server: RoleGroup, flow: Flow) -> bool:
    """Whether the others wait for the server's work, and not for the ratio that it keeps."""
    if acting.blocked.mean >= NOTABLE:  # the server's queue is full, even if the server does not look busy
        return True
    if server.busy.high < BUSY_THRESHOLD:
        return False
    target = flow.samples_per_insert_target
    if not target:
        return max(acting.free, learning.free) >= NOTABLE
    below_target = (flow.samples_per_insert or 0.0) < 0.95 * target
    return learning.free >= NOTABLE and (acting.free >= NOTABLE or below_target)


def _none(roles: Sequence[RoleGroup], flow: Flow) -> Bottleneck:
    shares = ", ".join(f"{_name(role)} {role.busy.mean:.0%}" for role in roles)
    why = f"balanced{flow.limit}" if flow.limit else "no role is saturated"
    return Bottleneck("none", f"{why}; {shares}")


def _name(role: RoleGroup) -> str:
    return role.name if role.count == 1 else f"{role.name}s"


def _busy(role: RoleGroup) -> str:
    one_is_full = role.count > 1 and role.busy.high >= BUSY_THRESHOLD > role.busy.mean
    return f"busy {role.busy.high if one_is_full else role.busy.mean:.0%}"


def _stalled(role: RoleGroup) -> float:
    return role.waiting.mean + role.blocked.mean


def _idle_time(role: RoleGroup) -> str:
    """The largest share of time in which the role does not work, and its cause."""
    if role.blocked.mean >= max(NOTABLE, role.waiting.mean):
        return f"{_name(role)} blocked {role.blocked.mean:.0%}"
    if role.waiting.mean >= NOTABLE:
        return f"{_name(role)} {'wait' if role.count > 1 else 'waits'} {role.waiting.mean:.0%}"
    return f"{_name(role)} idle {role.free:.0%}"
