"""RayHost: the Ray actor of one host. It receives on event loops; its roles live in a thread of their own."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from troop import __version__
from troop.engines.codec import pack
from troop.engines.machine import keep_pages
from troop.engines.on_ray_edges import Body, RayAnswers, RayAsking, RayLetter, RayServing, body, opened
from troop.engines.unpacking import unpack
from troop.engines.worker import LONG, Ended, Start, Worker

POLL = 1.0  # seconds after which a launcher that listens is told that there is nothing new
STUFFED = 4  # messages that the launcher has not taken, from which on reports wait
SWITCH = 0.001  # seconds a role may keep Python from the threads that receive; the default is five times that

CONTROL = "control"
Method = TypeVar("Method", bound=Callable[..., Any])
Message = tuple[int, bytes, Body | None]
"""Number, packed words, and a state if one goes along."""


class RayPost:
    """All that comes to a host, in one queue, and all that it has to say to its launcher."""

    worker: Worker

    def __init__(self) -> None:
        self._events: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self._asking: dict[str, RayAsking] = {}
        self._serving: dict[str, RayServing] = {}
        self._orders: dict[int, tuple[bytes, Any]] = {}  # of the launcher, come before their turn
        self._obeyed = self._numbered = 0
        self.edges: list[RayServing] = []
        self.answers = RayAnswers()
        self.said: deque[Message] = deque()  # what the launcher has not taken yet
        self.spoke: Callable[[], object] = lambda: None  # is told when there is something to hear

    def open(self, start: Start, life: int) -> None:
        """Make the ends of all edges."""
        me = (start.host, life)
        for name in dict.fromkeys(start.elsewhere.values()):
            self._asking[name] = RayAsking(name, me, self, start.mailbox)
        self._serving = {name: RayServing(name) for name in start.askers}
        self.edges = list(self._serving.values())

    def bind(self, worker: Worker) -> None:
        """Whom to tell what the launcher says."""
        self.worker = worker

    def asking(self, host: str) -> RayAsking:
        """The asker's end of the edge to a host."""
        return self._asking[host]

    @property
    def expecting(self) -> bool:
        """Whether answers are under way."""
        return any(edge.expecting for edge in self._asking.values())

    @property
    def stuffed(self) -> bool:
        """Whether the launcher has not taken what was said."""
        return len(self.said) >= STUFFED

    def queue(self) -> tuple[int, int]:
        """Letters and bytes that wait here."""
        letters = [letter for edge in self.edges for letter in edge.inbox]
        return len(letters), sum(letter.size for letter in letters)

    def say(self, what: str, *rest: Any, state: dict[str, Any] | None = None) -> None:  # noqa: ANN401
        """Tell the launcher; never waits."""
        self._numbered += 1
        given = None if state is None else body(pack(state))
        self.said.append((self._numbered, bytes(pack((what, *rest)).meta), given))
        self.spoke()

    def drain(self, seconds: float) -> None:
        """See that what was said is taken."""
        deadline = time.monotonic() + seconds
        while self.said and time.monotonic() < deadline:
            time.sleep(0.01)

    def put(self, *event: Any) -> None:  # noqa: ANN401
        """Remember for the role's thread; may be called from any."""
        self._events.put(event)

    def put_later(self, seconds: float, *event: Any) -> None:  # noqa: ANN401
        """The same, after a while."""
        timer = threading.Timer(seconds, self._events.put, (event,))
        timer.daemon = True
        timer.start()

    def receive(self, seconds: float) -> bool:
        """Take in what comes within this time; whether it is worth acting on."""
        waiting = any(edge.inbox for edge in self.edges)  # came while a role waited for an answer
        return self._next(0.0 if waiting else seconds) or waiting

    def look(self) -> None:
        """Take in what has come by now."""
        self._next(0.0)

    def wait(self, done: Callable[[], bool], why: str, full: bool = False) -> None:
        """Wait until `done()`; letters that come meanwhile are served later."""
        began = time.perf_counter()
        while not done():
            self._next(LONG)
            self.worker.waited(why, began)
        self.worker.meter.away(time.perf_counter() - began, full)

    def _next(self, seconds: float) -> bool:
        useful = False
        try:
            event = self._events.get(timeout=seconds) if seconds > 0 else self._events.get_nowait()
            while True:
                useful |= self._take(*event)
                event = self._events.get_nowait()
        except Empty:
            return useful

    def _take(self, what: Any, *rest: Any) -> bool:  # noqa: ANN401
        if isinstance(what, RayAsking):
            return what.came(*rest)
        if what == "letter":
            asker, life, settled, letter = rest
            self._serving[asker].take(life, settled, letter)
            return True
        number, words, given = rest
        if number > self._obeyed:
            self._orders[number] = (words, given)
        while (order := self._orders.pop(self._obeyed + 1, None)) is not None:
            self._obeyed += 1
            self._obey(*order)
        return True

    def _obey(self, words: bytes, given: Any) -> None:  # noqa: ANN401
        what, *rest = unpack(words)
        if what == "attach":
            self._asking[rest[0]].attach(given[0])
        else:
            self.worker.obey(what, rest, None if given is None else opened(*given))


def _controlling(method: Method) -> Method:
    """Keep a method apart from letters, so that it is heard however many of them wait.

    This is what ray.method(concurrency_group=...) does, without Ray: the page is read where there is none.
    """
    method.__ray_concurrency_group__ = CONTROL  # type: ignore[attr-defined]
    return method


class RayHost:
    """Lives until it is killed, its launcher is silent for too long, or a role of it fails."""

    def __init__(self) -> None:
        self._post = RayPost()
        self._heard = time.monotonic()
        self._life: threading.Thread | None = None
        self._bell = asyncio.Event()

    @_controlling
    async def hello(self, paths: list[str], threads: int) -> tuple[str, str, int, str]:
        """Prepare for roles; version of troop, Ray's id of the node, process, way of authentication."""
        import ray

        sys.path += [path for path in paths if path not in sys.path and os.path.isdir(path)]
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(threads)
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(threads)
        sys.setswitchinterval(SWITCH)
        keep_pages()
        node = ray.get_runtime_context().get_node_id()
        return __version__, node, os.getpid(), os.environ.get("RAY_AUTH_MODE", "")

    @_controlling
    async def start(self, start: Start, life: int) -> None:
        """Let the roles live."""
        self._post.open(start, life)
        self._life = threading.Thread(target=self._live, args=(start,), name=start.host, daemon=True)
        self._life.start()
        threading.Thread(target=self._follow_launcher, args=(start.patience,), daemon=True).start()

    def _live(self, start: Start) -> None:
        worker = Worker(start, self._post)
        try:
            worker.run()
        except Ended:
            worker.close()
        except BaseException:  # a role wants the process to end
            os._exit(1)
        self._post.say("ended")

    def _follow_launcher(self, patience: float) -> None:
        """Ray ends the actors of a launcher that died; for one that is cut off we do not wait for ever."""
        while time.monotonic() - self._heard < patience:
            time.sleep(POLL)
        os._exit(1)

    async def letter(
        self,
        asker: str,
        life: int,
        order: int,
        settled: int,
        kind: int,
        meta: bytes,
        block: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """A call or a tell of another host; returns when it is answered or opened."""
        letter = RayLetter(order, kind, (meta, block))
        self._post.put("letter", asker, life, settled, letter)
        return await letter

    @_controlling
    async def obey(self, number: int, words: bytes, given: Any) -> None:  # noqa: ANN401
        """Something the launcher says."""
        self._post.put("order", number, words, given)

    @_controlling
    async def listen(self, taken: int) -> list[Message]:
        """What the host has to say, waited for a while; messages up to `taken` have arrived."""
        self._heard = time.monotonic()
        said, bell, loop = self._post.said, self._bell, asyncio.get_running_loop()
        while said and said[0][0] <= taken:
            said.popleft()
        self._post.spoke = lambda: loop.call_soon_threadsafe(bell.set)
        bell.clear()
        if not said:
            try:
                await asyncio.wait_for(bell.wait(), POLL)
            except TimeoutError:
                return []
        return list(said)

    @_controlling
    async def stack(self) -> str:
        """Where the roles' thread is."""
        frame = sys._current_frames().get(self._life.ident or 0) if self._life is not None else None
        return "" if frame is None else "".join(traceback.format_stack(frame))[-20_000:]
