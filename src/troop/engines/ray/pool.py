"""RayCrew: the actors of a program's hosts, on whatever nodes they live."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from troop.core.errors import SetupProblem
from troop.core.program import Program
from troop.engines.pool import ControlMessage, HostHandle, OnControl, host_handles
from troop.engines.ray.client import Body, from_body, to_body
from troop.engines.ray.host_actor import CONTROL, VERSION, RayHost
from troop.engines.ray.placement import Placement
from troop.engines.rpc.codec import pack
from troop.engines.rpc.decode import unpack
from troop.engines.worker import HEARTBEAT_S

CALLS = 8  # calls of the launcher that an actor handles at once, whatever its letters do
LETTERS = 10_000  # letters of all askers that may wait in one actor
AGAIN = 0.3  # seconds before an actor that could not be reached is asked again
# Seconds between reports, at least and for each host: one costs launcher and host about a millisecond.
REPORT, REPORT_EACH = 0.25, 0.05


class ControlChannel:
    """What the launcher says to an actor, numbered: Ray may hand over calls in another order."""

    def __init__(self, handle: Any) -> None:  # noqa: ANN401
        self._handle, self._number = handle, 0

    def send(self, words: bytes | bytearray, given: Any = ()) -> None:  # noqa: ANN401
        """Say it; nobody waits for an answer."""
        self._number += 1
        self._handle.handle_command.remote(self._number, bytes(words), given or None)


@dataclass
class ActorRecord:
    """What the launcher knows of one actor."""

    number: int
    handle: Any
    asked: Any  # the call under way: the first is `hello`, all others `listen`
    greeted: bool = False
    taken: int = 0  # messages heard
    answered: float = 0.0  # when it last answered anything
    again: float = 0.0  # when to ask it again, if it could not be reached
    pid: int = 0


class RayPool:
    """Starts, wires, hears and ends actors; knows nothing of what they are for."""

    def __init__(self, program: Program, seed: int, mailbox_bytes: int, wait_limit_s: float) -> None:
        self.hosts = host_handles(program)
        self.deferred = deferrable_hosts(self.hosts)
        self._seed, self._mailbox_bytes, self._wait_limit_s = seed, mailbox_bytes, wait_limit_s
        self._actors: dict[str, ActorRecord] = {}
        self._nodes: dict[str, str] = {}  # where a host lives, or lived last
        self._ends: dict[str, str] = {}  # why an actor was given up
        self._count = 0

    def configure(self, places: Placement, lost_s: float, secure: bool) -> None:
        """Where hosts may live, how long one may be out of reach, and whether strangers must be kept out."""
        self._places, self._lost_s, self._secure = places, lost_s, secure

    def spawn(self, host: HostHandle) -> None:
        """An actor for the host; it waits for `begin` before it serves."""
        import ray

        actor = ray.remote(concurrency_groups={CONTROL: CALLS})(RayHost).options(
            max_concurrency=LETTERS,
            max_restarts=0,  # state and edges come from the launcher, so restarts do too
            **self._places.options(host.name, self._nodes.get(host.name, "")),
        )
        handle = actor.remote()
        self._count += 1
        now = time.monotonic()
        paths = [path for path in sys.path if path]
        self._actors[host.name] = ActorRecord(
            self._count, handle, handle.hello.remote(paths, host.threads), answered=now
        )
        host.control = ControlChannel(handle)
        host.ready = False
        host.last_message = host.spawned = now

    def connect(self, host: HostHandle) -> None:
        """Tell the host whom it asks, and those who ask it where it is now."""
        self._introduce(host)
        for client in host.clients:
            if self.hosts[client].alive:
                self._attach(self.hosts[client], host)

    def connect_all(self) -> None:
        """Every edge of the program, once."""
        for host in self.hosts.values():
            self._introduce(host)

    def _introduce(self, host: HostHandle) -> None:
        for server in dict.fromkeys(host.servers.values()):
            if self.hosts[server].alive:
                self._attach(host, self.hosts[server])

    def _attach(self, client: HostHandle, server: HostHandle) -> None:
        client.send("attach", server.name, attached=[self._actors[server.name].handle])

    def start(self, host: HostHandle, state: dict[str, Any] | None, restored: bool) -> None:
        """Let the host take back its state, if any, and serve."""
        host.send("start", restored, attached=() if state is None else to_body(pack(state)))

    def poll(self, seconds: float, on_control: OnControl) -> list[HostHandle]:
        """Pass on what hosts say within this time; returns those who have died or are out of reach."""
        import ray

        now = time.monotonic()
        for record in self._actors.values():
            if record.asked is None and record.again <= now:
                self._listen(record)
        asked = {record.asked: name for name, record in self._actors.items() if record.asked is not None}
        if not asked:
            time.sleep(min(seconds, AGAIN))
        else:
            ray.wait(list(asked), num_returns=1, timeout=seconds)
            for ref in ray.wait(list(asked), num_returns=len(asked), timeout=0)[0]:
                self._take(self.hosts[asked[ref]], ref, on_control)
        now = time.monotonic()
        for name, record in self._actors.items():
            if self.hosts[name].ready and now - record.answered > self._lost_s:
                self._places.lost.add(self._nodes.get(name, ""))
                self._ends.setdefault(name, f"its node did not answer for {now - record.answered:.0f} s")
        return [self.hosts[name] for name in self._ends if name in self._actors]

    def _listen(self, record: ActorRecord) -> None:
        record.asked = record.handle.listen.remote(record.taken)

    def _take(self, host: HostHandle, ref: Any, on_control: OnControl) -> None:  # noqa: ANN401
        import ray
        from ray.exceptions import ActorUnavailableError, RayError

        record = self._actors[host.name]
        record.asked = None
        try:
            answer = ray.get(ref)
        except ActorUnavailableError:
            record.again = time.monotonic() + AGAIN
            return
        except RayError as error:
            self._ends[host.name] = self._died(host, error)
            return
        record.answered = time.monotonic()
        if not record.greeted:
            self._admit(host, record, *answer)
            self._listen(record)
            return
        for number, words, state in answer:
            if number > record.taken:
                record.taken, host.last_message = number, record.answered
                message = unpack(words)
                if message[0] == "stopped":
                    self._ends[host.name] = "it ended"
                on_control(host, message, [] if state is None else [state])
        self._listen(record)

    def _admit(
        self, host: HostHandle, record: ActorRecord, version: str, node: str, pid: int, mode: str
    ) -> None:
        """See that the node is one of ours, then let the host build its roles there."""
        where = _address(node)
        if version != VERSION:
            raise SetupProblem(
                f"The node {where} has troop {version} and this one {VERSION}; install the same on both."
            )
        if self._secure and mode.lower() != "token":
            raise SetupProblem(
                f"The node {where} runs Ray without token authentication: start it with RAY_AUTH_MODE=token, "
                "or say --engine.insecure if nobody else can reach it."
            )
        record.greeted, record.pid, self._nodes[host.name] = True, pid, node
        report_s = min(max(REPORT, REPORT_EACH * len(self.hosts)), HEARTBEAT_S)
        spec = host.spec(self._seed, self._mailbox_bytes, self._wait_limit_s, report_s)
        record.handle.start.remote(spec, record.number)

    def _died(self, host: HostHandle, error: Exception) -> str:
        text = " ".join(str(error).split())
        if not self._actors[host.name].greeted and "No module named 'troop" in text:
            raise SetupProblem(
                "A node of the Ray cluster has no troop; install the same version on all nodes."
            )
        return f"its Ray worker died: {_cause(text)}"

    def decode_state(self, given: Body) -> dict[str, Any]:
        """The state that came with what a host said."""
        state: dict[str, Any] = from_body(*given)
        return state

    def stack_trace(self, host: HostHandle, request: bool = False) -> str:
        """Where the host's roles are at this moment, if it is asked and can still say so."""
        record = self._actors.get(host.name)
        if not request or record is None:
            return ""
        import ray
        from ray.exceptions import RayError

        with contextlib.suppress(RayError):
            return str(ray.get(record.handle.stack.remote(), timeout=3))
        return ""

    def reap(self, host: HostHandle) -> str:
        """Make sure that nothing is left of the host's actor; how it ended."""
        import ray

        record = self._actors.pop(host.name, None)
        host.control, host.ready = None, False
        if record is None:
            return ""
        ray.kill(record.handle, no_restart=True)
        return self._ends.pop(host.name, "it was ended")

    def stop(self, seconds: float, kill_now: Iterable[HostHandle] = ()) -> list[str]:
        """Ask all to end; after this time, or `at_once`, they are killed. Returns the names of the late."""
        strangers = [self.hosts[name] for name, record in self._actors.items() if not record.greeted]
        for host in [*kill_now, *strangers]:
            self.reap(host)
        for host in self.hosts.values():
            host.send("stop")
        deadline = time.monotonic() + seconds
        while self._actors and time.monotonic() < deadline:
            for host in self.poll(min(0.1, max(0.0, deadline - time.monotonic())), _ignore):
                self.reap(host)
        late = list(self._actors)
        for host in self.hosts.values():
            self.reap(host)
        return late


def deferrable_hosts(hosts: Mapping[str, HostHandle]) -> frozenset[str]:
    """Hosts that nobody asks and that evaluate, or do what an earlier host does: a run can begin without.

    Every actor of Ray imports torch for itself; where cores are few, those that come later delay the first.
    """
    found, known = set(), set()
    for name, host in hosts.items():
        kind = tuple(node.build.make for node in host.nodes)
        if not host.clients and (host.scheduled or kind in known):
            found.add(name)
        known.add(kind)
    return frozenset(found)


def _ignore(host: HostHandle, message: ControlMessage, given: list[Any]) -> None:
    """Whatever it says now, the run is over."""


def _cause(text: str) -> str:
    """The one sentence of Ray's that says why."""
    for mark in ("Worker exit detail: ", "cause: ", "exit detail: "):
        if mark in text:
            text = text.split(mark, 1)[1]
    return text.split(". ")[0][:200]


def _address(node: str) -> str:
    import ray

    return next((str(found["NodeManagerAddress"]) for found in ray.nodes() if found["NodeID"] == node), node)
