"""C6 Program: nodes in order; a node may hold only earlier nodes, so waiting can never go in a circle."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Ref:
    """Stands for a node until the engine puts the object, or a stub of it, in its place."""

    name: str


@dataclass(frozen=True)
class Build:
    """A call that is made where the node lives."""

    make: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Schedule:
    """When an engine lets a node step: after this many env steps or, without them, training seconds."""

    env_steps: int | None = None
    seconds: float = 15.0


@dataclass
class Node:
    """One role, not built yet."""

    name: str
    build: Build
    schedule: Schedule | None = None  # None: every round
    host: str = ""  # nodes of one host share a thread; "": a host of its own
    threads: int | None = None  # CPU threads its host should have; None: the engine decides


def build(make: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Say now, build there; typed as the thing itself so that mypy checks the wiring."""
    return cast(T, Build(make, args, kwargs))


@dataclass
class Program:
    """Which roles exist and who holds whom."""

    name: str
    nodes: dict[str, Node] = field(default_factory=dict)
    _host: str = ""  # where `add` puts nodes at the moment

    def add(self, name: str, role: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """A node; the reference returned is typed as the role and may be given to later nodes."""
        if name in self.nodes:
            raise ValueError(f"two nodes are named {name!r}")
        node = Node(name, Build(role, args, kwargs), host=self._host)
        for ref in references(node.build):
            if ref.name not in self.nodes:
                raise ValueError(f"{name!r} holds {ref.name!r}, which is not an earlier node")
        self.nodes[name] = node
        return cast(T, Ref(name))

    def schedule(self, name: str, when: Schedule) -> None:
        """Let the node step on a schedule, its time counted apart (evaluation)."""
        self.nodes[name].schedule = when

    def place(self, name: str, threads: int) -> None:
        """Say how many CPU threads the node's host should have."""
        self.nodes[name].threads = threads

    @contextmanager
    def host(self, name: str) -> Iterator[None]:
        """Nodes added inside share one thread: they call each other plainly, nothing is copied."""
        before, self._host = self._host, name
        try:
            yield
        finally:
            self._host = before

    def hosts(self) -> dict[str, list[Node]]:
        """Nodes by host, callees first; ValueError if hosts would wait for each other in a circle."""
        where = {name: node.host or name for name, node in self.nodes.items()}
        holds: dict[str, dict[str, None]] = {host: {} for host in where.values()}  # ordered, unlike sets
        for name, node in self.nodes.items():
            for ref in references(node.build):
                if where[ref.name] != where[name]:
                    holds[where[name]][where[ref.name]] = None
        try:
            order = list(TopologicalSorter(holds).static_order())
        except CycleError as error:
            raise ValueError(f"hosts wait for each other in a circle: {' -> '.join(error.args[1])}") from None
        return {host: [self.nodes[name] for name in where if where[name] == host] for host in order}


def references(value: object) -> list[Ref]:
    """All Refs inside nested builds, lists, tuples and dicts."""
    if isinstance(value, Ref):
        return [value]
    if isinstance(value, Build):
        return references([*value.args, *value.kwargs.values()])
    if isinstance(value, list | tuple):
        return [ref for item in value for ref in references(item)]
    if isinstance(value, dict):
        return references(list(value.values()))
    return []


def construct(value: Any, find: Callable[[str], Any]) -> Any:  # noqa: ANN401 - whatever was to be built
    """Replace Refs by what `find` gives and carry out Builds, inside out."""
    if isinstance(value, Ref):
        return find(value.name)
    if isinstance(value, Build):
        args = [construct(item, find) for item in value.args]
        return value.make(*args, **{key: construct(item, find) for key, item in value.kwargs.items()})
    if isinstance(value, list):
        return [construct(item, find) for item in value]
    if type(value) is tuple:
        return tuple(construct(item, find) for item in value)
    if isinstance(value, dict):
        return {key: construct(item, find) for key, item in value.items()}
    return value


def derive_seed(seed: int, name: str) -> int:
    """A seed for the part called `name`, the same on every machine."""
    return zlib.crc32(f"{seed}/{name}".encode()) & 0x7FFFFFFF
