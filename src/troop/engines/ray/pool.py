"""RayPool: starts, connects, polls and stops the Ray actors that run the hosts of a program."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from troop.core.errors import SetupProblem
from troop.core.program import Program
from troop.engines.pool import ControlMessage, HostHandle, OnControl, host_handles, rendezvous_server
from troop.engines.ray.host_actor import CONTROL_GROUP, VERSION, RayHost
from troop.engines.ray.message import Body, from_body, to_body
from troop.engines.ray.placement import Placement
from troop.engines.rpc.codec import pack
from troop.engines.rpc.decode import unpack
from troop.engines.worker import HEARTBEAT_S

if TYPE_CHECKING:  # it imports torch
    from troop.engines.distributed_group import RendezvousServer

CONTROL_CALLS = 8  # concurrent calls of the driver to one actor, in addition to the messages of peers
PEER_MESSAGES = 10_000  # messages of all clients that may wait in one actor
RETRY_S = 0.3  # delay before the driver polls an unreachable actor again
# Seconds between reports of a host: the minimum, and per host of the program. A report costs about a
# millisecond of CPU time at the driver and at the host.
REPORT_S, REPORT_S_PER_HOST = 0.25, 0.05


@dataclass
class ActorRecord:
    """The driver's record of one Ray actor; also its end of the control connection (`ControlLink`)."""

    generation: int  # counts all actors of the run; peers reject messages of an older one
    handle: Any  # Ray actor handle
    pending: Any  # reference to the call in flight, first `handshake`, then `fetch_control`; None: none
    last_reply: float  # time.monotonic() of the newest result of a call
    admitted: bool = False  # the handshake succeeded
    received: int = 0  # sequence number of the newest control message
    retry_at: float = 0.0  # time.monotonic() of the next `fetch_control` to an unreachable actor
    commands: int = 0  # sent so far

    def send(self, message: bytes | bytearray, attached: Any = (), /) -> None:  # noqa: ANN401
        """Send a command, numbered because Ray may deliver calls out of order; does not block."""
        self.commands += 1
        self.handle.receive_command.remote(self.commands, bytes(message), attached or None)

    def fetch_control(self) -> None:
        """Request the next control messages; `pending` resolves to them."""
        self.pending = self.handle.fetch_control.remote(self.received)


class RayPool:
    """The HostPool of the Ray engine: one Ray actor per host, on any node of the cluster."""

    def __init__(self, program: Program, seed: int, mailbox_bytes: int, wait_limit_s: float) -> None:
        self.hosts = host_handles(program)
        self.deferred = deferrable_hosts(self.hosts)
        self.rendezvous: RendezvousServer | None = None  # until `configure`
        self._seed, self._mailbox_bytes, self._wait_limit_s = seed, mailbox_bytes, wait_limit_s
        self._actors: dict[str, ActorRecord] = {}  # by host
        self._nodes: dict[str, str] = {}  # host -> id of the node of its current or last actor
        self._end_reasons: dict[str, str] = {}  # host -> why its actor is considered dead
        self._spawned = 0

    def configure(self, placement: Placement, lost_limit_s: float, secure: bool) -> None:
        """Set where actors run, when a silent one counts as lost, and whether nodes must require a token."""
        import ray

        self._placement, self._lost_limit_s, self._secure = placement, lost_limit_s, secure
        address = str(ray.util.get_node_ip_address())
        self.rendezvous = rendezvous_server(self.hosts, address, self._wait_limit_s)

    def spawn(self, host: HostHandle) -> None:
        """Create an actor for the host; it waits for `start` before it serves calls."""
        import ray

        actor = ray.remote(concurrency_groups={CONTROL_GROUP: CONTROL_CALLS})(RayHost).options(
            max_concurrency=PEER_MESSAGES,
            max_restarts=0,  # the driver restarts hosts, since it provides their state and edges
            **self._placement.options(host.name, self._nodes.get(host.name, "")),
        )
        handle = actor.remote()
        self._spawned += 1
        now = time.monotonic()
        handshake = handle.handshake.remote([path for path in sys.path if path], host.threads)
        record = ActorRecord(self._spawned, handle, pending=handshake, last_reply=now)
        self._actors[host.name] = host.control = record
        host.ready = False
        host.last_message = host.spawned = now

    def connect(self, host: HostHandle) -> None:
        """Send the actor handles of its servers to the host, and the handle of the host to its clients."""
        self._attach_servers(host)
        for client in host.clients:
            if self.hosts[client].alive:
                self._attach(self.hosts[client], host)

    def connect_all(self) -> None:
        """Create every edge of the program once."""
        for host in self.hosts.values():
            self._attach_servers(host)

    def _attach_servers(self, host: HostHandle) -> None:
        for server in dict.fromkeys(host.servers.values()):
            if self.hosts[server].alive:
                self._attach(host, self.hosts[server])

    def _attach(self, client: HostHandle, server: HostHandle) -> None:
        client.send("attach", server.name, attached=[self._actors[server.name].handle])

    def start(self, host: HostHandle, state: dict[str, Any] | None, restored: bool) -> None:
        """Let the host load `state`, if any, and serve; `restored` marks a restart within a run."""
        host.send("start", restored, attached=() if state is None else to_body(pack(state)))

    def poll(self, seconds: float, on_control: OnControl) -> list[HostHandle]:
        """Deliver control messages of hosts for up to `seconds`; return the hosts that died or are lost.

        Raises SetupProblem if a new actor runs on a node that does not qualify (see `_admit`).
        """
        import ray

        now = time.monotonic()
        for record in self._actors.values():
            if record.pending is None and record.retry_at <= now:
                record.fetch_control()
        pending = {
            record.pending: name for name, record in self._actors.items() if record.pending is not None
        }
        if not pending:
            time.sleep(min(seconds, RETRY_S))
        else:
            ray.wait(list(pending), num_returns=1, timeout=seconds)
            for ref in ray.wait(list(pending), num_returns=len(pending), timeout=0)[0]:
                self._handle_reply(self.hosts[pending[ref]], ref, on_control)
        now = time.monotonic()
        for name, record in self._actors.items():
            silent_s = now - record.last_reply
            if self.hosts[name].ready and silent_s > self._lost_limit_s:
                self._placement.lost_nodes.add(self._nodes.get(name, ""))
                self._end_reasons.setdefault(name, f"its node did not respond for {silent_s:.0f} s")
        return [self.hosts[name] for name in self._end_reasons if name in self._actors]

    def _handle_reply(self, host: HostHandle, ref: Any, on_control: OnControl) -> None:  # noqa: ANN401
        import ray
        from ray.exceptions import ActorUnavailableError, RayError

        record = self._actors[host.name]
        record.pending = None
        try:
            reply = ray.get(ref)
        except ActorUnavailableError:
            record.retry_at = time.monotonic() + RETRY_S
            return
        except RayError as error:
            self._end_reasons[host.name] = self._death_reason(record, error)
            return
        record.last_reply = time.monotonic()
        if not record.admitted:
            self._admit(host, record, *reply)
            record.fetch_control()
            return
        for number, packed, state in reply:
            if number > record.received:
                record.received, host.last_message = number, record.last_reply
                message = unpack(packed)
                if message[0] == "stopped":
                    self._end_reasons[host.name] = "its Ray actor stopped"
                on_control(host, message, [] if state is None else [state])
        record.fetch_control()

    def _admit(self, host: HostHandle, record: ActorRecord, version: str, node: str, auth_mode: str) -> None:
        """Let the actor build its roles; SetupProblem if its node has another version or no token check."""
        address = _node_address(node)
        if version != VERSION:
            raise SetupProblem(
                f"The node {address} has troop {version} and this machine has {VERSION}; "
                "install the same version on both."
            )
        if self._secure and auth_mode.lower() != "token":
            raise SetupProblem(
                f"The node {address} runs Ray without token authentication: start it with "
                "RAY_AUTH_MODE=token, or pass --engine.insecure if no other user can reach it."
            )
        record.admitted, self._nodes[host.name] = True, node
        report_s = min(max(REPORT_S, REPORT_S_PER_HOST * len(self.hosts)), HEARTBEAT_S)
        spec = host.spec(self._seed, self._mailbox_bytes, self._wait_limit_s, report_s, self.rendezvous)
        record.handle.start.remote(spec, record.generation)

    def _death_reason(self, record: ActorRecord, error: Exception) -> str:
        text = " ".join(str(error).split())
        if not record.admitted and "No module named 'troop" in text:
            raise SetupProblem(
                "A node of the Ray cluster has no troop; install the same version on all nodes."
            )
        return f"its Ray worker died: {_ray_cause(text)}"

    def decode_state(self, attached: Body) -> dict[str, Any]:
        """Decode the state that was attached to a control message."""
        state: dict[str, Any] = from_body(*attached)
        return state

    def stack_trace(self, host: HostHandle, request: bool = False) -> str:
        """Return the current stack of the host's roles; empty without `request` or from a lost actor."""
        record = self._actors.get(host.name)
        if not request or record is None:
            return ""
        import ray
        from ray.exceptions import RayError

        with contextlib.suppress(RayError):
            return str(ray.get(record.handle.stack_trace.remote(), timeout=3))
        return ""

    def reap(self, host: HostHandle) -> str:
        """Kill the host's actor, if it has one, and return how it ended."""
        import ray

        record = self._actors.pop(host.name, None)
        host.control, host.ready = None, False
        if record is None:
            return ""
        ray.kill(record.handle, no_restart=True)
        return self._end_reasons.pop(host.name, "its Ray actor was killed")

    def stop(self, seconds: float, kill_now: Iterable[HostHandle] = ()) -> list[str]:
        """Let all hosts close their roles and exit; kill those that take longer than `seconds`.

        Hosts in `kill_now` and hosts that have not completed the handshake are killed at once. Returns the
        names of the hosts that exceeded the time.
        """
        starting = [self.hosts[name] for name, record in self._actors.items() if not record.admitted]
        for host in [*kill_now, *starting]:
            self.reap(host)
        for host in self.hosts.values():
            host.send("stop")
        deadline = time.monotonic() + seconds
        while self._actors and time.monotonic() < deadline:
            for host in self.poll(min(0.1, max(0.0, deadline - time.monotonic())), _discard):
                self.reap(host)
        late = list(self._actors)
        for host in self.hosts.values():
            self.reap(host)
        self.rendezvous = None  # its store stops listening
        return late


def deferrable_hosts(hosts: Mapping[str, HostHandle]) -> frozenset[str]:
    """Return the hosts without which training can begin.

    These are the hosts without clients and outside of groups that only evaluate or that build the same roles
    as an earlier host.
    Every Ray actor imports torch by itself, so on few cores starting all at once delays the first env step.
    """
    deferrable, roles = set(), set()
    for name, host in hosts.items():
        makes = tuple(node.build.make for node in host.nodes)
        if not host.clients and not host.in_group and (host.scheduled or makes in roles):
            deferrable.add(name)
        roles.add(makes)
    return frozenset(deferrable)


def _discard(host: HostHandle, message: ControlMessage, attached: list[Any]) -> None:
    """Ignore a control message: the run is over."""


def _ray_cause(text: str) -> str:
    """Return the sentence of Ray's error message that states the cause."""
    for mark in ("Worker exit detail: ", "cause: ", "exit detail: "):
        if mark in text:
            text = text.split(mark, 1)[1]
    return text.split(". ")[0][:200]


def _node_address(node_id: str) -> str:
    import ray

    addresses = (str(node["NodeManagerAddress"]) for node in ray.nodes() if node["NodeID"] == node_id)
    return next(addresses, node_id)
