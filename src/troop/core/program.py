"""Program: the roles of a run and their references, as data that an engine builds and runs.

A node may reference only earlier nodes, so calls cannot wait for each other in a cycle.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal, ParamSpec, TypeVar, cast

from troop.core.group import Group, SoloGroup

P = ParamSpec("P")
T = TypeVar("T")
NodeKind = Literal["acting", "training", "storing", "learning", "serving", "evaluating"]
"""What a node does with experience; a `training` node acts and learns in turn."""


@dataclass(frozen=True)
class Ref:
    """Reference to a node, which the engine replaces by the role or by a stub of it."""

    name: str


@dataclass(frozen=True)
class GroupRef:
    """Place of a node in a group, which the engine replaces by the Group that the member sees."""

    group: str
    rank: int
    size: int


@dataclass(frozen=True)
class Build:
    """A call that is made on the host of the node."""

    make: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Schedule:
    """Period of a scheduled node: this many env steps or, without them, seconds of training."""

    env_steps: int | None = None
    seconds: float = 15.0


@dataclass
class Node:
    """One role and how to build it."""

    name: str
    build: Build
    schedule: Schedule | None = None  # None: steps in every round
    host: str = ""  # nodes of one host share a thread; "": a host of its own
    threads: int | None = None  # CPU threads of its host; None: the engine decides

    @property
    def kind(self) -> NodeKind:
        """`kind` of the role's class; without one, from its schedule and its methods."""
        if self.schedule is not None:
            return "evaluating"
        passive: NodeKind = "storing" if hasattr(self.build.make, "sample") else "serving"
        return cast(NodeKind, getattr(self.build.make, "kind", passive))

    @property
    def light(self) -> bool:
        """Whether the role's class is `light`: it needs no torch, so that its process starts without it."""
        return bool(getattr(self.build.make, "light", False))

    @property
    def group_ref(self) -> GroupRef | None:
        """The node's place in a group; None if it is in none."""
        return next((item for item in leaves(self.build) if isinstance(item, GroupRef)), None)


@dataclass(frozen=True)
class MetricRatio:
    """A ratio that the system keeps or reports: the product of some metrics over the product of others."""

    name: str
    numerator: tuple[str, ...]  # names of metrics
    denominator: tuple[str, ...]
    unit: str  # as the panel prints it, e.g. "critic updates/step"
    target: float | None = None  # None: no role waits for this ratio


def build(make: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Describe the call `make(*args, **kwargs)`, to be made on the node's host.

    The result is typed as the result of the call, so that mypy checks the wiring.
    """
    return cast(T, Build(make, args, kwargs))


@dataclass
class Program:
    """The nodes of a run, in the order in which they are built."""

    name: str
    nodes: dict[str, Node] = field(default_factory=dict)
    ratios: list[MetricRatio] = field(default_factory=list)
    _host: str = ""  # host of the nodes that `add` creates

    def add(self, name: str, role: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Add a node; return a reference, typed as the role, that may be passed to later nodes."""
        if name in self.nodes:
            raise ValueError(f"two nodes are named {name!r}")
        node = Node(name, Build(role, args, kwargs), host=self._host)
        for ref in references(node.build):
            if ref.name not in self.nodes:
                raise ValueError(f"{name!r} references {ref.name!r}, which is not an earlier node")
        self.nodes[name] = node
        return cast(T, Ref(name))

    def group(self, name: str, size: int) -> list[Group]:
        """Declare a group; return the places of its members, by rank: one node each, on a host of its own.

        Engines start the members together, let them meet in collectives and restart them as one.
        """
        return [cast(Group, GroupRef(name, rank, size)) for rank in range(size)]

    def schedule(self, name: str, schedule: Schedule) -> None:
        """Let the node step on a schedule; its time is not counted as training time (evaluation)."""
        self.nodes[name].schedule = schedule

    def report_ratio(self, ratio: MetricRatio) -> None:
        """Report the ratio as the metric `ratio/<name>` and on the panel."""
        self.ratios.append(ratio)

    @contextmanager
    def host(self, name: str) -> Iterator[None]:
        """Nodes added in this context share one thread: they call each other directly, without copies."""
        previous, self._host = self._host, name
        try:
            yield
        finally:
            self._host = previous

    def hosts(self) -> dict[str, list[Node]]:
        """Return the nodes of each host, called hosts first; ValueError for a cycle of hosts."""
        host_of = {name: node.host or name for name, node in self.nodes.items()}
        callees: dict[str, dict[str, None]] = {host: {} for host in host_of.values()}  # ordered, unlike sets
        for name, node in self.nodes.items():
            for ref in references(node.build):
                if host_of[ref.name] != host_of[name]:
                    callees[host_of[name]][host_of[ref.name]] = None
        try:
            order = list(TopologicalSorter(callees).static_order())
        except CycleError as error:
            cycle = " -> ".join(error.args[1])
            raise ValueError(f"hosts would wait for each other in a cycle: {cycle}") from None
        nodes_of: dict[str, list[Node]] = {host: [] for host in order}
        for name, host in host_of.items():
            nodes_of[host].append(self.nodes[name])
        return nodes_of


def references(value: object) -> list[Ref]:
    """Return all Refs inside nested builds, lists, tuples and dicts."""
    return [item for item in leaves(value) if isinstance(item, Ref)]


def leaves(value: object) -> Iterator[object]:
    """Yield what nested builds, lists, tuples and dicts contain."""
    if isinstance(value, Build):
        value = [*value.args, *value.kwargs.values()]
    elif isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def join_alone(ref: GroupRef) -> Group:
    """Return a group of one member; a larger one needs an engine that lets its members meet."""
    assert ref.size == 1, f"the group {ref.group!r} has {ref.size} members"
    return SoloGroup()


def construct(
    value: Any,  # noqa: ANN401 - any type can be built
    resolve: Callable[[str], Any],
    join: Callable[[GroupRef], Group] = join_alone,
) -> Any:  # noqa: ANN401
    """Make the calls of nested Builds, innermost first, with `resolve(name)` and `join(ref)` as arguments.

    Each Ref is replaced by `resolve` of its name, each GroupRef by `join` of it.
    """
    if isinstance(value, Ref):
        return resolve(value.name)
    if isinstance(value, GroupRef):
        return join(value)
    if isinstance(value, Build):
        args = construct(list(value.args), resolve, join)
        return value.make(*args, **construct(dict(value.kwargs), resolve, join))
    if isinstance(value, list):
        return [construct(item, resolve, join) for item in value]
    if type(value) is tuple:
        return tuple(construct(list(value), resolve, join))
    if isinstance(value, dict):
        return {key: construct(item, resolve, join) for key, item in value.items()}
    return value


def derive_seed(seed: int, name: str) -> int:
    """Return the seed of the component called `name`: the same on every machine."""
    return zlib.crc32(f"{seed}/{name}".encode()) & 0x7FFFFFFF
