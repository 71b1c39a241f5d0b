"""Transport: how a host exchanges messages with its peers and its driver, and the HostSpec it starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from troop.core.program import Program
from troop.engines.rpc.dispatcher import ReplySender
from troop.engines.rpc.stub import CallChannel

if TYPE_CHECKING:
    from troop.engines.distributed_group import Rendezvous
    from troop.engines.worker import Worker


@dataclass(frozen=True)
class HostSpec:
    """Everything that the process or actor of a host needs to start."""

    host: str
    program: Program  # the nodes of this host
    servers: dict[str, str]  # remote nodes that the program references -> their hosts
    clients: tuple[str, ...]  # hosts that reference nodes of this one
    seed: int
    threads: int
    mailbox_bytes: int  # that one client may have sent to one server without their being handled
    wait_limit_s: float  # longest time a role may be blocked on a peer
    report_s: float = 0.1  # seconds between reports while roles make progress
    rendezvous: Rendezvous | None = None  # of the group that a role of the host belongs to, if any


class Transport(Protocol):
    """Connects a host with its peers and its driver; each engine with several hosts implements one."""

    edges: list[Any]  # one ServerEdge per client

    @property
    def replies(self) -> ReplySender:
        """Sends replies to clients."""
        ...

    def bind(self, worker: Worker) -> None:
        """Set the worker that handles the driver's commands."""
        ...

    def client(self, host: str) -> CallChannel:
        """Return the client that sends calls to a host."""
        ...

    def receive(self, seconds: float) -> bool:
        """Wait up to `seconds` for messages and read them; return whether there is anything to act on."""
        ...

    def send_control(self, verb: str, *args: Any, state: dict[str, Any] | None = None) -> None:  # noqa: ANN401
        """Send a control message to the driver; never blocks."""
        ...

    @property
    def awaiting_replies(self) -> bool:
        """Whether calls to peers have not been answered yet."""
        ...

    @property
    def has_undelivered(self) -> bool:
        """Whether one-way sends may not have reached their server, so that its state would lack them."""
        ...

    @property
    def backlogged(self) -> bool:
        """Whether earlier control messages have not been received by the driver."""
        ...

    def flush(self, seconds: float) -> None:
        """Wait up to `seconds` until the control messages have left."""
        ...

    def queue_size(self) -> tuple[int, int]:
        """Return messages and bytes that clients have sent and this host has not handled."""
        ...
