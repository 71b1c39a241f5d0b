"""HostPool: the interface through which the driver starts, connects, polls and stops hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from troop.core.program import Node, Program, references
from troop.engines.rpc.codec import pack
from troop.engines.rpc.transport import HostSpec
from troop.engines.runtime import cores

if TYPE_CHECKING:  # it imports torch
    from troop.engines.distributed_group import RendezvousServer

ControlMessage = tuple[Any, ...]
"""A verb and its arguments, exchanged between the driver and a host."""


class ControlLink(Protocol):
    """The driver's end of the control connection to one host."""

    def send(self, message: bytes | bytearray, attached: Any = (), /) -> None:  # noqa: ANN401
        """Send a packed control message without blocking; the engine defines what may be attached."""
        ...


@dataclass
class HostHandle:
    """The driver's record of one host; it outlives the process or actor that currently runs the host."""

    name: str
    nodes: list[Node]
    servers: dict[str, str]  # remote nodes that this host's nodes reference -> the hosts of those nodes
    clients: list[str] = field(default_factory=list)  # hosts whose nodes reference nodes of this one
    threads: int = 1
    control: ControlLink | None = None  # None while no process or actor runs the host
    ready: bool = False
    saves_state: bool = False
    restores_state: bool = False  # whether a restart loads the newest checkpoint (see `restart_fresh`)
    active: bool = False  # whether a role of the host steps without a schedule
    last_message: float = 0.0  # time.monotonic() of the newest message from the host
    spawned: float = 0.0  # time.monotonic() of the newest spawn; identifies the incarnation

    @property
    def scheduled(self) -> bool:
        """Whether a role of the host steps on a schedule."""
        return any(node.schedule is not None for node in self.nodes)

    @property
    def light(self) -> bool:
        """Whether no node of the host needs torch."""
        return all(node.light for node in self.nodes)

    @property
    def alive(self) -> bool:
        """Whether a process or actor currently runs the host."""
        return self.control is not None

    def send(self, *message: Any, attached: Any = ()) -> None:  # noqa: ANN401
        """Send a control message; a host without a process ignores it."""
        if self.control is not None:
            self.control.send(pack(message).meta, attached)

    @property
    def group(self) -> str:
        """Name of the group that a node of the host belongs to; empty if there is none."""
        return next((node.group_ref.group for node in self.nodes if node.group_ref is not None), "")

    @property
    def in_group(self) -> bool:
        """Whether its group has other members."""
        return any(node.group_ref is not None and node.group_ref.size > 1 for node in self.nodes)

    def spec(
        self,
        seed: int,
        mailbox_bytes: int,
        wait_limit_s: float,
        report_s: float = 0.1,
        rendezvous: RendezvousServer | None = None,
    ) -> HostSpec:
        """Return the description of the host that its process or actor receives."""
        return HostSpec(
            host=self.name,
            program=Program(self.name, {node.name: node for node in self.nodes}),
            servers=self.servers,
            clients=tuple(self.clients),
            seed=seed,
            threads=self.threads,
            mailbox_bytes=mailbox_bytes,
            wait_limit_s=wait_limit_s,
            report_s=report_s,
            rendezvous=rendezvous.rendezvous(self.group) if rendezvous and self.in_group else None,
        )


OnControl = Callable[[HostHandle, ControlMessage, list[Any]], None]
"""Receives a host, its control message and what is attached to the message."""


class HostPool(Protocol):
    """Starts, connects, polls and stops hosts. The processes and the Ray engine each implement one."""

    hosts: dict[str, HostHandle]
    rendezvous: RendezvousServer | None
    """Where the members of groups find each other; None if the program has no groups."""
    deferred: frozenset[str]
    """Names of hosts that start after training has begun, because starting all at once would take long."""

    def spawn(self, host: HostHandle) -> None:
        """Create a process or actor for the host; it waits for `start` before it serves calls."""
        ...

    def connect(self, host: HostHandle) -> None:
        """Create new edges between the host and every living client and server of it."""
        ...

    def connect_all(self) -> None:
        """Create every edge of the program once."""
        ...

    def start(self, host: HostHandle, state: dict[str, Any] | None, restored: bool) -> None:
        """Let the host load `state`, if any, and serve; `restored` marks a restart within a run."""
        ...

    def poll(self, seconds: float, on_control: OnControl) -> list[HostHandle]:
        """Deliver control messages of hosts for up to `seconds`; return the hosts that have died."""
        ...

    def decode_state(self, attached: Any) -> dict[str, Any]:  # noqa: ANN401
        """Decode the state that was attached to a control message."""
        ...

    def stack_trace(self, host: HostHandle, request: bool = False) -> str:
        """Return the last known stack trace of the host; with `request`, ask the host for a current one."""
        ...

    def reap(self, host: HostHandle) -> str:
        """Kill what is left of the host, release its resources and return how it ended."""
        ...


def host_handles(program: Program) -> dict[str, HostHandle]:
    """Return a handle for each host of a program, servers before their clients."""
    nodes_of = program.hosts()
    host_of = {node.name: name for name, nodes in nodes_of.items() for node in nodes}
    handles: dict[str, HostHandle] = {}
    for name, nodes in nodes_of.items():
        referenced = {ref.name for node in nodes for ref in references(node.build)}
        servers = {node: host_of[node] for node in sorted(referenced) if host_of[node] != name}
        handles[name] = HostHandle(name, nodes, servers)
    for handle in handles.values():
        for server in dict.fromkeys(handle.servers.values()):
            handles[server].clients.append(handle.name)
    return handles


def share_cores(hosts: Mapping[str, HostHandle], threads: int) -> None:
    """Set the threads of each host: as its nodes request, else `threads`, else a share of the cores."""
    stepping = [host for host in hosts.values() if may_step(host)]
    for host in hosts.values():
        requested = max((node.threads or 0 for node in host.nodes), default=0)
        host.threads = requested or threads or max(1, cores() // max(1, len(stepping)))


def may_step(host: HostHandle) -> bool:
    """Return whether a role of the host steps without a schedule."""
    return any(node.schedule is None and hasattr(node.build.make, "step") for node in host.nodes)


def rendezvous_server(
    hosts: Mapping[str, HostHandle], address: str, limit_s: float
) -> RendezvousServer | None:
    """Return where the members of groups find each other; None if no group has several members."""
    if not any(host.in_group for host in hosts.values()):
        return None
    from troop.engines.distributed_group import RendezvousServer

    return RendezvousServer(address, limit_s)
