"""RayHost: the Ray actor of one host. It receives on event loops; its roles live in a thread of their own."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from troop.engines.ray.server import RayMessage
from troop.engines.ray.transport import ControlEnvelope, RayTransport
from troop.engines.rpc.transport import HostSpec
from troop.engines.runtime import THREAD_VARIABLES, defer_compiler_import, keep_freed_pages
from troop.engines.worker import Shutdown, Worker

POLL = 1.0  # seconds after which a launcher that listens is told that there is nothing new
SWITCH = 0.001  # seconds a role may keep Python from the threads that receive; the default is five times that

CONTROL = "control"
VERSION: str = sys.modules["troop"].__version__  # the package is loaded before its parts
F = TypeVar("F", bound=Callable[..., Any])


def _controlling(method: F) -> F:
    """Keep a method apart from letters, so that it is heard however many of them wait.

    This is what ray.method(concurrency_group=...) does, without Ray: the page is read where there is none.
    """
    method.__ray_concurrency_group__ = CONTROL  # type: ignore[attr-defined]
    return method


class RayHost:
    """Lives until it is killed, its launcher is silent for too long, or a role of it fails."""

    def __init__(self) -> None:
        self._transport = RayTransport()
        self._heard = time.monotonic()
        self._roles_thread: threading.Thread | None = None
        self._bell = asyncio.Event()

    @_controlling
    async def hello(self, paths: list[str], threads: int) -> tuple[str, str, int, str]:
        """Prepare for roles; version of troop, Ray's id of the node, process, way of authentication."""
        import ray

        sys.path += [path for path in paths if path not in sys.path and os.path.isdir(path)]
        for name in THREAD_VARIABLES:
            os.environ[name] = str(threads)
        sys.setswitchinterval(SWITCH)
        keep_freed_pages()
        node = ray.get_runtime_context().get_node_id()
        return VERSION, node, os.getpid(), os.environ.get("RAY_AUTH_MODE", "")

    @_controlling
    async def start(self, start: HostSpec, generation: int) -> None:
        """Let the roles live."""
        self._transport.open(start, generation)
        self._roles_thread = threading.Thread(target=self._live, args=(start,), name=start.host, daemon=True)
        self._roles_thread.start()
        threading.Thread(target=self._follow_launcher, args=(start.wait_limit_s,), daemon=True).start()

    def _live(self, start: HostSpec) -> None:
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(start.threads)  # a limit is one thread's own
        defer_compiler_import()
        worker = Worker(start, self._transport)
        try:
            worker.run()
        except Shutdown:
            worker.close()
        except BaseException:  # a role wants the process to end
            os._exit(1)
        self._transport.send_control("stopped")

    def _follow_launcher(self, wait_limit_s: float) -> None:
        """Ray ends the actors of a launcher that died; for one that is cut off we do not wait for ever."""
        while time.monotonic() - self._heard < wait_limit_s:
            time.sleep(POLL)
        os._exit(1)

    async def message(
        self,
        client: str,
        generation: int,
        order: int,
        settled: int,
        kind: int,
        meta: bytes,
        block: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """A call or a tell of another host; returns when it is answered or opened."""
        message = RayMessage(order, kind, (meta, block))
        self._transport.put("message", client, generation, settled, message)
        return await message

    @_controlling
    async def handle_command(self, number: int, words: bytes, given: Any) -> None:  # noqa: ANN401
        """Something the launcher says."""
        self._transport.put("command", number, words, given)

    @_controlling
    async def listen(self, taken: int) -> list[ControlEnvelope]:
        """What the host has to say, waited for a while; messages up to `taken` have arrived."""
        self._heard = time.monotonic()
        said, bell, loop = self._transport.said, self._bell, asyncio.get_running_loop()
        while said and said[0][0] <= taken:
            said.popleft()
        self._transport.spoke = lambda: loop.call_soon_threadsafe(bell.set)
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
        frame = (
            sys._current_frames().get(self._roles_thread.ident or 0)
            if self._roles_thread is not None
            else None
        )
        return "" if frame is None else "".join(traceback.format_stack(frame))[-20_000:]
