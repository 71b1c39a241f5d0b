"""Post: what a host is given, and how it reaches its peers and its launcher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from troop.core.program import Program
from troop.engines.rpc.dispatcher import ReplySender
from troop.engines.rpc.stub import CallChannel

if TYPE_CHECKING:
    from troop.engines.worker import Worker


@dataclass(frozen=True)
class HostSpec:
    """All that a host's process is given."""

    host: str
    program: Program  # its own nodes
    servers: dict[str, str]  # the hosts of the nodes it holds
    clients: tuple[str, ...]  # hosts that hold its nodes
    seed: int
    threads: int
    mailbox_bytes: int  # bytes
    wait_limit_s: float  # seconds it waits for a peer
    report_s: float = 0.1  # seconds between reports of a host that moves


class Transport(Protocol):
    """How a host reaches its peers and its launcher: all that engines with many hosts differ in."""

    edges: list[Any]  # of those who ask; each an Edge

    @property
    def replies(self) -> ReplySender:
        """What sends answers to those who ask."""
        ...

    def bind(self, worker: Worker) -> None:
        """Whom to tell what the launcher says."""
        ...

    def client(self, host: str) -> CallChannel:
        """The asker's end of the edge to a host."""
        ...

    def receive(self, seconds: float) -> bool:
        """Take in what comes within this time; whether it is worth acting on."""
        ...

    def send_control(self, what: str, *rest: Any, state: dict[str, Any] | None = None) -> None:  # noqa: ANN401
        """Tell the launcher; never waits."""
        ...

    @property
    def awaiting_replies(self) -> bool:
        """Whether answers are under way."""
        ...

    @property
    def has_undelivered(self) -> bool:
        """Whether something told may not have reached its receiver, who would be asked for its state now."""
        ...

    @property
    def backlogged(self) -> bool:
        """Whether the launcher has not taken what was said."""
        ...

    def flush(self, seconds: float) -> None:
        """See that what was said leaves."""
        ...

    def queue_size(self) -> tuple[int, int]:
        """Letters and bytes that wait here."""
        ...
