"""Roles and edges of a running system: a static description, and how each group of roles spends its time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

DATA_FLOW = ("acting", "training", "storing", "learning", "serving", "evaluating")
"""Kinds of nodes in the order in which experience passes through them; a `training` node acts and learns."""
_NUMBER = re.compile(r"[/_.-]?\d+$")
_MAX_SEPARATE = 8  # nodes of one group that are still written one by one


@dataclass(frozen=True)
class NodeSpec:
    """One node of the system: its kind, one of `DATA_FLOW`, and the nodes that it calls."""

    name: str
    kind: str = "serving"
    calls: tuple[str, ...] = ()


@dataclass(frozen=True)
class RatioSpec:
    """A ratio that the system keeps or reports: the product of some metrics over the product of others."""

    name: str  # metrics.jsonl has `ratio/<name>` and, with a target, `ratio/<name>_target`
    numerator: tuple[str, ...]  # names of metrics
    denominator: tuple[str, ...]
    unit: str  # as the panel prints it, e.g. "critic updates/step"
    target: float | None = None  # None: no role waits for this ratio


@dataclass(frozen=True)
class Topology:
    """What the panel has to know of a system: its nodes, the calls between them and its ratios."""

    nodes: tuple[NodeSpec, ...] = ()
    ratios: tuple[RatioSpec, ...] = ()

    def node(self, name: str) -> NodeSpec:
        """The node of this name; a node that was not declared is a server that calls no other node."""
        return next((node for node in self.nodes if node.name == name), NodeSpec(name))


@dataclass(frozen=True)
class Spread:
    """One number of several roles."""

    mean: float = 0.0
    low: float = 0.0
    high: float = 0.0
    total: float = 0.0

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """The spread of `values`; all fields are 0 for an empty list."""
        if not values:
            return cls()
        return cls(sum(values) / len(values), min(values), max(values), sum(values))


@dataclass(frozen=True)
class RoleGroup:
    """All roles whose nodes differ only in their number: shares of their time, steps/s, queued messages."""

    name: str  # the node's own name if there is only one
    kind: str
    count: int
    busy: Spread
    waiting: Spread  # for replies
    blocked: Spread  # by the full queue of a receiver
    rate: Spread  # steps per second
    queue: float  # messages, summed over the group
    queue_bytes: float
    cpu: float = 0.0  # cores in use, summed over the group
    memory_bytes: float = 0.0  # resident, summed over the group
    calls: frozenset[str] = frozenset()  # names of the groups that this group calls

    @property
    def free(self) -> float:
        """The share of time in which the roles do not work, for whatever reason."""
        return 1.0 - self.busy.mean


def group_name(node: str) -> str:
    """The name of a node without its number: `actor` for `actor12` and for `actor/12`."""
    return _NUMBER.sub("", node) or node


def groups(metrics: Mapping[str, float], topology: Topology) -> list[RoleGroup]:
    """One group for each name, in the order of the data flow; empty if the engine reports no role metrics.

    Groups of one kind keep the order in which the system declares them.
    """
    members: dict[str, dict[str, dict[str, float]]] = {}
    for metric, value in metrics.items():
        if metric.startswith("role/"):
            node, _, field = metric[5:].rpartition("/")
            members.setdefault(group_name(node), {}).setdefault(node, {})[field] = value
    declared = list(dict.fromkeys(group_name(node.name) for node in topology.nodes))

    def position(group: str) -> tuple[int, int, str]:
        kind = topology.node(next(iter(members[group]))).kind
        index = declared.index(group) if group in declared else len(declared)
        return DATA_FLOW.index(kind), index, group

    return [_group(name, members[name], topology) for name in sorted(members, key=position)]


def _group(name: str, members: dict[str, dict[str, float]], topology: Topology) -> RoleGroup:
    def spread(field: str) -> Spread:
        return Spread.of([values[field] for values in members.values() if field in values])

    nodes = [topology.node(member) for member in members]
    return RoleGroup(
        name=nodes[0].name if len(nodes) == 1 else name,
        kind=nodes[0].kind,
        count=len(nodes),
        busy=spread("busy"),
        waiting=spread("waiting"),
        blocked=spread("blocked"),
        rate=spread("steps_per_s"),
        queue=spread("queue").total,
        queue_bytes=spread("queue_bytes").total,
        cpu=spread("cpu").total,
        memory_bytes=spread("memory_bytes").total,
        calls=frozenset(group_name(callee) for node in nodes for callee in node.calls),
    )


def fold_groups(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics to write: those of more than 8 nodes of one group as mean, `_min` and `_max`.

    Roles are folded into `roles/<group>/<metric>`, replays and servers into `<group>s/<metric>`. A line is
    written every second; hundreds of actors one by one would fill the disk.
    """
    nodes: dict[str, set[str]] = {}
    for metric in metrics:
        nodes.setdefault(_folded_name(_owner(metric)), set()).add(_owner(metric))
    folded = {node: name for name, owners in nodes.items() if len(owners) > _MAX_SEPARATE for node in owners}
    written: dict[str, float] = {}
    values: dict[str, list[float]] = {}
    for metric, value in metrics.items():
        owner = _owner(metric)
        if owner in folded:
            values.setdefault(f"{folded[owner]}/{metric[len(owner) + 1 :]}", []).append(value)
        else:
            written[metric] = value
    written |= {f"{name}/count": len(nodes[name]) for name in dict.fromkeys(folded.values())}
    for name, numbers in values.items():
        spread = Spread.of(numbers)
        written |= {name: round(spread.mean, 4), f"{name}_min": spread.low, f"{name}_max": spread.high}
    return written


def _owner(metric: str) -> str:
    """The owner of a metric: `role/actor/3` for `role/actor/3/busy`, `replay3` for `replay3/rows`."""
    return metric.rpartition("/")[0] if metric.startswith("role/") else metric.partition("/")[0]


def _folded_name(owner: str) -> str:
    return f"roles/{group_name(owner[5:])}" if owner.startswith("role/") else f"{group_name(owner)}s"
