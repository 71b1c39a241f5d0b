"""RayHost: the Ray actor of one host. Event loops receive calls; the roles run in a thread of their own."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from troop.engines.ray.message import RayMessage
from troop.engines.ray.transport import ControlEnvelope, RayTransport
from troop.engines.rpc.transport import HostSpec
from troop.engines.runtime import THREAD_VARIABLES, defer_compiler_import, keep_freed_pages
from troop.engines.worker import Shutdown, Worker

LONG_POLL_S = 1.0  # after which `fetch_control` returns without messages
SWITCH_INTERVAL_S = (
    0.001  # for which a role may keep the GIL from the receiving threads; Python's default: 0.005
)

CONTROL_GROUP = "control"
VERSION: str = sys.modules["troop"].__version__  # the package is loaded before its modules
F = TypeVar("F", bound=Callable[..., Any])


def _in_control_group(method: F) -> F:
    """Run a method in a concurrency group of its own, so that waiting peer messages do not delay it.

    Sets the same attribute as ray.method(concurrency_group=...); this module must import without Ray.
    """
    method.__ray_concurrency_group__ = CONTROL_GROUP  # type: ignore[attr-defined]
    return method


class RayHost:
    """Runs the roles of one host until the driver stops it or disappears, or a role fails."""

    def __init__(self) -> None:
        self._transport = RayTransport()
        self._last_fetch = time.monotonic()
        self._roles_thread: threading.Thread | None = None
        self._outbox_filled = asyncio.Event()

    @_in_control_group
    async def handshake(self, paths: list[str], threads: int) -> tuple[str, str, str]:
        """Prepare the process; return the version of troop, Ray's id of the node and its RAY_AUTH_MODE."""
        import ray

        sys.path += [path for path in paths if path not in sys.path and os.path.isdir(path)]
        for name in THREAD_VARIABLES:
            os.environ[name] = str(threads)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        keep_freed_pages()
        node = ray.get_runtime_context().get_node_id()
        return VERSION, node, os.environ.get("RAY_AUTH_MODE", "")

    @_in_control_group
    async def start(self, spec: HostSpec, generation: int) -> None:
        """Start the thread of the roles."""
        self._transport.open(spec, generation)
        self._roles_thread = threading.Thread(
            target=self._run_roles, args=(spec,), name=spec.host, daemon=True
        )
        self._roles_thread.start()
        threading.Thread(target=self._exit_when_orphaned, args=(spec.wait_limit_s,), daemon=True).start()

    def _run_roles(self, spec: HostSpec) -> None:
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(spec.threads)  # the limit of OpenMP is per thread
        defer_compiler_import()
        worker = Worker(spec, self._transport)
        try:
            worker.run()
        except Shutdown:
            worker.close()
        except BaseException:  # such as SystemExit, with which a role ends the process
            os._exit(1)
        self._transport.send_control("stopped")

    def _exit_when_orphaned(self, limit_s: float) -> None:
        """Exit when the driver has not fetched messages for `limit_s`.

        Ray kills the actors of a driver that dies, but not of one that is cut off from the network.
        """
        while time.monotonic() - self._last_fetch < limit_s:
            time.sleep(LONG_POLL_S)
        os._exit(1)

    async def receive_message(
        self,
        client: str,
        generation: int,
        sequence: int,
        oldest: int,
        kind: int,
        meta: bytes,
        block: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Receive a call or one-way message of a peer; return its reply, or None once it is decoded."""
        message = RayMessage(sequence, kind, (meta, block))
        self._transport.put(self._transport.on_message, client, generation, oldest, message)
        return await message

    @_in_control_group
    async def receive_command(self, number: int, command: bytes, attached: Any) -> None:  # noqa: ANN401
        """Receive a command of the driver; `number` orders the commands."""
        self._transport.put(self._transport.on_command, number, command, attached)

    @_in_control_group
    async def fetch_control(self, acknowledged: int) -> list[ControlEnvelope]:
        """Return control messages to the driver; wait up to `LONG_POLL_S` for the first.

        Messages numbered up to `acknowledged` have reached the driver and are discarded; the others are
        returned again.
        """
        self._last_fetch = time.monotonic()
        outbox, filled, loop = self._transport.outbox, self._outbox_filled, asyncio.get_running_loop()
        while outbox and outbox[0][0] <= acknowledged:
            outbox.popleft()
        self._transport.on_outbox = lambda: loop.call_soon_threadsafe(filled.set)
        filled.clear()
        if not outbox:
            try:
                await asyncio.wait_for(filled.wait(), LONG_POLL_S)
            except TimeoutError:
                return []
        return list(outbox)

    @_in_control_group
    async def stack_trace(self) -> str:
        """Return the current stack of the thread of the roles; empty before `start`."""
        thread = self._roles_thread
        frame = sys._current_frames().get(thread.ident or 0) if thread is not None else None
        return "" if frame is None else "".join(traceback.format_stack(frame))[-20_000:]
