"""Crew: the processes of a program's hosts, their lines and edges."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import Any

from troop.core.program import Node, Program, references
from troop.engines.processes import child
from troop.engines.processes.fork_server import NEEDED, few_threads, unheard
from troop.engines.rpc.codec import pack
from troop.engines.rpc.connection import Line, pair
from troop.engines.rpc.decode import unpack
from troop.engines.rpc.shared_memory import Ledger, anonymous, opened, parcel
from troop.engines.rpc.transport import Start

Message = tuple[Any, ...]


@dataclass
class Member:
    """One host, whichever process is its present one."""

    name: str
    nodes: list[Node]
    holds: dict[str, str]  # nodes elsewhere -> their hosts
    askers: list[str] = field(default_factory=list)
    threads: int = 1
    process: Any = None
    line: Line | None = None
    stack: int | None = None  # where the process writes its stack when it is asked to, or crashes
    grouped: bool = False  # it leads a process group of its own
    ready: bool = False
    saves: bool = False
    restores: bool = False  # it goes on from what was saved if it dies; the expendable begin anew
    active: bool = False
    heard: float = 0.0
    spawned: float = 0.0

    @property
    def scheduled(self) -> bool:
        """Whether a role of it steps on a schedule."""
        return any(node.schedule is not None for node in self.nodes)

    @property
    def alive(self) -> bool:
        """Whether there is a process."""
        return self.process is not None

    def say(self, *message: Any, fds: tuple[int, ...] = ()) -> None:  # noqa: ANN401
        """Send to its process, if there is one."""
        if self.line is not None:
            self.line.send(pack(message).meta, fds)


def members(program: Program) -> dict[str, Member]:
    """The hosts of a program, callees first, and who asks whom."""
    hosts = program.hosts()
    where = {node.name: host for host, nodes in hosts.items() for node in nodes}
    crew: dict[str, Member] = {}
    for host, nodes in hosts.items():
        held = {ref.name for node in nodes for ref in references(node.build)}
        crew[host] = Member(host, nodes, {name: where[name] for name in sorted(held) if where[name] != host})
    for member in crew.values():
        for server in dict.fromkeys(member.holds.values()):
            crew[server].askers.append(member.name)
    return crew


class Crew:
    """Starts, wires, hears and ends processes; knows nothing of what they are for."""

    later: frozenset[str] = frozenset()  # a fork takes no time

    def __init__(self, program: Program, seed: int, start: str, mailbox: int, patience: float) -> None:
        self.members = members(program)
        self._seed, self._mailbox, self._patience = seed, mailbox, patience
        self._context: Any = multiprocessing.get_context(start)
        if start == "forkserver":
            # What hosts are made of is loaded once, in the fork server, unless it is running already.
            ours = sorted(name for name in sys.modules if name.startswith("troop."))
            self._context.set_forkserver_preload([*NEEDED, *ours])

    def spawn(self, member: Member) -> None:
        """A process for the host; it waits for `begin` before it serves."""
        ours, theirs = pair()
        given = Start(
            host=member.name,
            program=Program(member.name, {node.name: node for node in member.nodes}),
            elsewhere=member.holds,
            askers=tuple(member.askers),
            seed=self._seed,
            threads=member.threads,
            mailbox=self._mailbox,
            patience=self._patience,
        )
        process = self._context.Process(target=child.main, args=(given, theirs), name=member.name)
        try:
            with unheard(), few_threads(member.threads):  # until it leads its own group
                process.start()
        finally:
            theirs.close()
        member.process, member.line = process, Line(ours)
        member.grouped = member.ready = False
        member.heard = member.spawned = time.monotonic()

    def wire(self, member: Member) -> None:
        """New edges between the host and all living hosts that it asks or that ask it."""
        for server in dict.fromkeys(member.holds.values()):
            self._edge(member, self.members[server])
        for asker in member.askers:
            self._edge(self.members[asker], member)

    def wire_all(self) -> None:
        """Every edge of the program, once."""
        for member in self.members.values():
            for server in dict.fromkeys(member.holds.values()):
                self._edge(member, self.members[server])

    def _edge(self, asker: Member, server: Member) -> None:
        if not (asker.alive and server.alive):
            return  # whoever is missing brings its edges along
        ends, ledger = pair(), anonymous(Ledger.SIZE)
        asker.say("attach", "asking", server.name, fds=(ends[0].fileno(), ledger))
        server.say("attach", "serving", asker.name, fds=(ends[1].fileno(), ledger))
        os.close(ledger)
        for end in ends:
            end.close()

    def begin(self, member: Member, state: dict[str, Any] | None, restored: bool) -> None:
        """Let the host take back its state, if any, and serve."""
        if state is None:
            member.say("begin", restored)
            return
        fd = parcel(state)
        member.say("begin", restored, fds=(fd,))
        os.close(fd)

    def hear(self, seconds: float, hear: Callable[[Member, Message, list[int]], None]) -> list[Member]:
        """Pass on what hosts say within this time; returns those whose process has ended."""
        living = [member for member in self.members.values() if member.alive]
        for member in living:
            if member.line is not None:
                member.line.flush()
        lines: dict[Any, Member] = {
            member.line: member for member in living if member.line is not None and member.line.open
        }
        ends: dict[Any, Member] = {member.process.sentinel: member for member in living}
        ready = connection.wait([*lines, *ends], seconds)
        for thing in ready:
            if thing in lines:
                self._hear(lines[thing], hear)
        gone = [ends[thing] for thing in ready if thing in ends]
        for member in gone:
            self._hear(member, hear)  # its last words
        return gone

    def _hear(self, member: Member, hear: Callable[[Member, Message, list[int]], None]) -> None:
        while member.line is not None and (came := member.line.receive()) is not None:
            member.heard = time.monotonic()
            message = unpack(came[0])
            if message[0] == "hello":
                member.stack, member.grouped = came[1][0], True
            else:
                hear(member, message, came[1])

    def opened(self, given: int) -> dict[str, Any]:
        """The state that came with what a host said."""
        state: dict[str, Any] = opened(given)
        return state

    def stack(self, member: Member, ask: bool = False) -> str:
        """What the process wrote of its stack; with `ask`, it is made to."""
        if ask and member.grouped:
            os.kill(member.process.pid, signal.SIGUSR1)
            time.sleep(0.3)
        if member.stack is None:
            return ""
        return os.pread(member.stack, 20_000, 0).decode(errors="replace")

    def bury(self, member: Member) -> str:
        """Make sure that nothing is left of the host's process and what it started; how it ended."""
        process, member.process = member.process, None
        if process is None:
            return ""
        if member.grouped:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # does nothing if it has ended, whoever has its number now
        process.join(5)
        code: int | None = process.exitcode
        if member.line is not None:
            member.line.close()
            member.line = None
        if member.stack is not None:
            os.close(member.stack)
            member.stack = None
        member.ready = False
        return _ended(code)

    def end(self, seconds: float, at_once: Iterable[Member] = ()) -> list[str]:
        """Ask all to end; after this time, or `at_once`, they are killed. Returns the names of the late."""
        for member in at_once:
            self.bury(member)
        for member in self.members.values():
            member.say("end")
        deadline = time.monotonic() + seconds
        while any(member.alive for member in self.members.values()) and time.monotonic() < deadline:
            for member in self.hear(min(0.1, max(0.0, deadline - time.monotonic())), _ignore):
                self.bury(member)
        late = [member.name for member in self.members.values() if member.alive]
        for member in self.members.values():
            self.bury(member)
        return late


def _ignore(member: Member, message: Message, fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _ended(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"its process ended with exit code {code}"
