"""Connection to Ray: a local Ray that this process starts, or an existing cluster."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from troop.core.engine import STOP_SIGNALS
from troop.core.errors import BadInput, SetupProblem
from troop.engines.private_folder import delete_private_folder, private_folder
from troop.engines.ray.authentication import (
    configure_authentication,
    reload_ray_config,
)
from troop.engines.runtime import thread_limit

LOCAL_CPUS = 100_000  # of a local Ray: its hosts share the cores of the machine, as processes do


class BackgroundInit:
    """Starts a local Ray in a thread while the main thread still imports torch and the experiment."""

    running: BackgroundInit | None = None

    def __init__(self, insecure: bool) -> None:
        configure_authentication("local", insecure)
        import ray

        self._ray, self._initialized, self._stopped = ray, threading.Event(), threading.Event()
        self._error: BaseException | None = None
        threading.Thread(target=self._run, daemon=True).start()
        atexit.register(self.shutdown)
        BackgroundInit.running = self

    def _run(self) -> None:
        try:
            _start_local()
        except BaseException as error:
            self._error = error
        self._initialized.set()
        self._stopped.wait()  # the kernel kills the processes of Ray with the thread that started them

    def wait(self) -> None:
        """Block until Ray runs; raise the error if it could not start."""
        self._initialized.wait()
        if self._error is not None:
            raise self._error

    def kill_and_exit(self, code: int) -> None:
        """Kill all child processes, delete the private folder and exit, even if Ray is still starting."""
        import psutil

        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                process.kill()
        delete_private_folder()
        os._exit(code)

    def shutdown(self) -> None:
        """Stop Ray, once it has started."""
        BackgroundInit.running = None
        self._initialized.wait()
        self._ray.shutdown()
        self._stopped.set()


@contextmanager
def ray_connection(address: str, insecure: bool, seconds: float) -> Iterator[None]:
    """Connect this process to Ray within the context; an existing connection is used and left open.

    Raises BadInput for a malformed address, SetupProblem if Ray is not installed, does not start, or does not
    respond within `seconds`.
    """
    check_address(address)
    configure_authentication(address, insecure)
    try:
        import ray
    except ImportError:
        raise SetupProblem("The Ray engine needs Ray: pip install 'trooprl[ray]'.") from None
    background = BackgroundInit.running
    if ray.is_initialized() and background is None:
        yield
        return
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        if background is not None and address == "local":
            background.wait()
        elif address == "local":
            _start_local()
        else:
            _join_cluster(address, seconds)
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():  # Ray installs its own
                signal.signal(number, handler)
        yield
    finally:
        background.shutdown() if background is not None else ray.shutdown()


def check_address(address: str) -> None:
    """Raise BadInput if `address` is malformed."""
    _, colon, port = address.removeprefix("ray://").rpartition(":")
    if address not in ("local", "auto") and not (colon and port.isdigit() and 0 < int(port) < 65536):
        raise BadInput(
            f"--engine.address is {address!r}; it must be local, auto, HOST:PORT or ray://HOST:PORT."
        )


def _quiet_options() -> dict[str, Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    return {"logging_level": logging.ERROR, "log_to_driver": False}


def _session_folder() -> str | None:
    """Return a folder that is removed with this process or by the next; None if its path is too long.

    Ray appends 70 characters for its sockets, whose paths are limited to 107.
    """
    folder = str(private_folder() / "ray")
    return folder if len(folder) <= 35 else None


def _start_local() -> None:
    """Start a Ray that only this machine can reach; SetupProblem if it does not start."""
    import ray
    from ray._private import node, parameter, ray_constants

    reload_ray_config()
    # Without autoscaler monitor, log monitor and API server Ray starts three processes fewer.
    lean_params = functools.partial(parameter.RayParams, no_monitor=True, include_log_monitor=False)
    try:
        with (
            thread_limit(1),  # workers import torch before the handshake sets their number of threads
            # Ray replaces 127.0.0.1 by an address that is reachable from outside unless this is False.
            _patch(ray_constants, "ENABLE_RAY_CLUSTER", False),
            _patch(parameter, "RayParams", lean_params),
            _patch(node.Node, "start_api_server", lambda self, **_: None),
        ):
            ray.init(
                address="local",
                num_cpus=LOCAL_CPUS,
                include_dashboard=False,
                _node_ip_address="127.0.0.1",
                _temp_dir=_session_folder(),
                _system_config={
                    "task_events_report_interval_ms": 0,  # only the dashboard uses task events
                    "preload_python_modules": ["torch"],  # workers import it while this process still does
                },
                **_quiet_options(),
            )
    except Exception as error:  # processes that die, timeouts, too little shared memory, ...
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SetupProblem(f"Ray could not start on this machine: {reason}") from error


@contextmanager
def _patch(owner: object, name: str, value: object) -> Iterator[None]:
    """Replace an attribute of Ray within the context, where Ray offers no setting."""
    original = getattr(owner, name, None)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _join_cluster(address: str, seconds: float) -> None:
    """Connect to an existing cluster; SetupProblem if it does not respond within `seconds`."""
    import ray

    reload_ray_config()
    if address != "auto":
        _probe_port(address, seconds)
    failure = _run_with_timeout(seconds, lambda: ray.init(address=address, **_quiet_options()))
    if failure is None:
        return
    reason = (str(failure).strip().splitlines() or [type(failure).__name__])[0]
    if address == "auto" and isinstance(failure, ConnectionError):
        reason = "no Ray runs on this machine; start one with `ray start --head`"
    reason = reason if reason.endswith(("?", ".")) else f"{reason}."
    raise SetupProblem(
        f"Could not connect to the Ray cluster at --engine.address {address}: {reason}"
    ) from failure


def _probe_port(address: str, seconds: float) -> None:
    """Open a TCP connection first: Ray itself retries for a minute and may exit the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except OSError as error:
        reason = "no response" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise SetupProblem(f"Could not connect to --engine.address {address}: {reason}.") from None


def _run_with_timeout(seconds: float, action: Callable[[], object]) -> BaseException | None:
    """Run `action` in a thread; return its error, a TimeoutError if it takes longer, or None."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        return TimeoutError(
            f"no response for {seconds:.0f} s; does this machine have the token of the cluster?"
        )
    return errors[0] if errors else None
