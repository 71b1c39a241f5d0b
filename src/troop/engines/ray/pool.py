"""RayCrew: the actors of a program's hosts, on whatever nodes they live."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from troop.core.errors import SetupProblem
from troop.core.program import Program
from troop.engines.processes.pool import Member, Message, members
from troop.engines.ray.client import Body, body, opened
from troop.engines.ray.host_actor import CONTROL, VERSION, RayHost
from troop.engines.ray.placement import Places
from troop.engines.rpc.codec import pack
from troop.engines.rpc.decode import unpack
from troop.engines.rpc.transport import Start
from troop.engines.worker import LONG

CALLS = 8  # calls of the launcher that an actor handles at once, whatever its letters do
LETTERS = 10_000  # letters of all askers that may wait in one actor
AGAIN = 0.3  # seconds before an actor that could not be reached is asked again
# Seconds between reports, at least and for each host: one costs launcher and host about a millisecond.
REPORT, REPORT_EACH = 0.25, 0.05


class Wire:
    """What the launcher says to an actor, numbered: Ray may hand over calls in another order."""

    def __init__(self, handle: Any) -> None:  # noqa: ANN401
        self._handle, self._number = handle, 0

    def send(self, words: bytes | bytearray, given: Any = ()) -> None:  # noqa: ANN401
        """Say it; nobody waits for an answer."""
        self._number += 1
        self._handle.obey.remote(self._number, bytes(words), given or None)


@dataclass
class Life:
    """What the launcher knows of one actor."""

    number: int
    handle: Any
    asked: Any  # the call under way: the first is `hello`, all others `listen`
    greeted: bool = False
    taken: int = 0  # messages heard
    answered: float = 0.0  # when it last answered anything
    again: float = 0.0  # when to ask it again, if it could not be reached
    pid: int = 0


class RayCrew:
    """Starts, wires, hears and ends actors; knows nothing of what they are for."""

    def __init__(self, program: Program, seed: int, mailbox: int, patience: float) -> None:
        self.members = members(program)
        self.later = can_wait(self.members)
        self._seed, self._mailbox, self._patience = seed, mailbox, patience
        self._lives: dict[str, Life] = {}
        self._nodes: dict[str, str] = {}  # where a host lives, or lived last
        self._ends: dict[str, str] = {}  # why an actor was given up
        self._count = 0

    def settle(self, places: Places, lost_s: float, secure: bool) -> None:
        """Where hosts may live, how long one may be out of reach, and whether strangers must be kept out."""
        self._places, self._lost_s, self._secure = places, lost_s, secure

    def spawn(self, member: Member) -> None:
        """An actor for the host; it waits for `begin` before it serves."""
        import ray

        actor = ray.remote(concurrency_groups={CONTROL: CALLS})(RayHost).options(
            max_concurrency=LETTERS,
            max_restarts=0,  # state and edges come from the launcher, so restarts do too
            **self._places.options(member.name, self._nodes.get(member.name, "")),
        )
        handle = actor.remote()
        self._count += 1
        now = time.monotonic()
        paths = [path for path in sys.path if path]
        self._lives[member.name] = Life(
            self._count, handle, handle.hello.remote(paths, member.threads), answered=now
        )
        member.process, member.line = handle, Wire(handle)  # type: ignore[assignment]
        member.ready = False
        member.heard = member.spawned = now

    def wire(self, member: Member) -> None:
        """Tell the host whom it asks, and those who ask it where it is now."""
        self._introduce(member)
        for asker in member.askers:
            if self.members[asker].alive:
                self._attach(self.members[asker], member)

    def wire_all(self) -> None:
        """Every edge of the program, once."""
        for member in self.members.values():
            self._introduce(member)

    def _introduce(self, member: Member) -> None:
        for server in dict.fromkeys(member.holds.values()):
            if self.members[server].alive:
                self._attach(member, self.members[server])

    def _attach(self, asker: Member, server: Member) -> None:
        if asker.line is not None:
            words = pack(("attach", server.name)).meta
            asker.line.send(words, [self._lives[server.name].handle])  # type: ignore[arg-type]

    def begin(self, member: Member, state: dict[str, Any] | None, restored: bool) -> None:
        """Let the host take back its state, if any, and serve."""
        if member.line is not None:
            given: Any = () if state is None else body(pack(state))
            member.line.send(pack(("begin", restored)).meta, given)

    def hear(self, seconds: float, hear: Callable[[Member, Message, list[Any]], None]) -> list[Member]:
        """Pass on what hosts say within this time; returns those who have died or are out of reach."""
        import ray

        now = time.monotonic()
        for life in self._lives.values():
            if life.asked is None and life.again <= now:
                self._listen(life)
        asked = {life.asked: name for name, life in self._lives.items() if life.asked is not None}
        if not asked:
            time.sleep(min(seconds, AGAIN))
        else:
            ray.wait(list(asked), num_returns=1, timeout=seconds)
            for ref in ray.wait(list(asked), num_returns=len(asked), timeout=0)[0]:
                self._take(self.members[asked[ref]], ref, hear)
        now = time.monotonic()
        for name, life in self._lives.items():
            if self.members[name].ready and now - life.answered > self._lost_s:
                self._places.lost.add(self._nodes.get(name, ""))
                self._ends.setdefault(name, f"its node did not answer for {now - life.answered:.0f} s")
        return [self.members[name] for name in self._ends if name in self._lives]

    def _listen(self, life: Life) -> None:
        life.asked = life.handle.listen.remote(life.taken)

    def _take(self, member: Member, ref: Any, hear: Callable[[Member, Message, list[Any]], None]) -> None:  # noqa: ANN401
        import ray
        from ray.exceptions import ActorUnavailableError, RayError

        life = self._lives[member.name]
        life.asked = None
        try:
            answer = ray.get(ref)
        except ActorUnavailableError:
            life.again = time.monotonic() + AGAIN
            return
        except RayError as error:
            self._ends[member.name] = self._died(member, error)
            return
        life.answered = time.monotonic()
        if not life.greeted:
            self._greet(member, life, *answer)
            self._listen(life)
            return
        for number, words, state in answer:
            if number > life.taken:
                life.taken, member.heard = number, life.answered
                message = unpack(words)
                if message[0] == "ended":
                    self._ends[member.name] = "it ended"
                hear(member, message, [] if state is None else [state])
        self._listen(life)

    def _greet(self, member: Member, life: Life, version: str, node: str, pid: int, mode: str) -> None:
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
        life.greeted, life.pid, self._nodes[member.name] = True, pid, node
        given = Start(
            host=member.name,
            program=Program(member.name, {node.name: node for node in member.nodes}),
            elsewhere=member.holds,
            askers=tuple(member.askers),
            seed=self._seed,
            threads=member.threads,
            mailbox=self._mailbox,
            patience=self._patience,
            report_s=min(max(REPORT, REPORT_EACH * len(self.members)), LONG),
        )
        life.handle.start.remote(given, life.number)

    def _died(self, member: Member, error: Exception) -> str:
        text = " ".join(str(error).split())
        if not self._lives[member.name].greeted and "No module named 'troop" in text:
            raise SetupProblem(
                "A node of the Ray cluster has no troop; install the same version on all nodes."
            )
        return f"its Ray worker died: {_cause(text)}"

    def opened(self, given: Body) -> dict[str, Any]:
        """The state that came with what a host said."""
        state: dict[str, Any] = opened(*given)
        return state

    def stack(self, member: Member, ask: bool = False) -> str:
        """Where the host's roles are at this moment, if it is asked and can still say so."""
        life = self._lives.get(member.name)
        if not ask or life is None:
            return ""
        import ray
        from ray.exceptions import RayError

        with contextlib.suppress(RayError):
            return str(ray.get(life.handle.stack.remote(), timeout=3))
        return ""

    def bury(self, member: Member) -> str:
        """Make sure that nothing is left of the host's actor; how it ended."""
        import ray

        life = self._lives.pop(member.name, None)
        member.process = member.line = None
        member.ready = False
        if life is None:
            return ""
        ray.kill(life.handle, no_restart=True)
        return self._ends.pop(member.name, "it was ended")

    def end(self, seconds: float, at_once: Iterable[Member] = ()) -> list[str]:
        """Ask all to end; after this time, or `at_once`, they are killed. Returns the names of the late."""
        strangers = [self.members[name] for name, life in self._lives.items() if not life.greeted]
        for member in [*at_once, *strangers]:
            self.bury(member)
        for member in self.members.values():
            member.say("end")
        deadline = time.monotonic() + seconds
        while self._lives and time.monotonic() < deadline:
            for member in self.hear(min(0.1, max(0.0, deadline - time.monotonic())), _ignore):
                self.bury(member)
        late = list(self._lives)
        for member in self.members.values():
            self.bury(member)
        return late


def can_wait(members: Mapping[str, Member]) -> frozenset[str]:
    """Hosts that nobody asks and that evaluate, or do what an earlier host does: a run can begin without.

    Every actor of Ray imports torch for itself; where cores are few, those that come later delay the first.
    """
    found, known = set(), set()
    for name, member in members.items():
        kind = tuple(node.build.make for node in member.nodes)
        if not member.askers and (member.scheduled or kind in known):
            found.add(name)
        known.add(kind)
    return frozenset(found)


def _ignore(member: Member, message: Message, given: list[Any]) -> None:
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
