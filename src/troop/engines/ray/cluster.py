"""Connecting to Ray: a cluster of our own on this machine or one that runs, with a token by default."""

from __future__ import annotations

import atexit
import functools
import importlib
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from troop.core.errors import BadInput, SetupProblem
from troop.engines.runtime import thread_limit

GET_TOKEN = "run `ray get-auth-token --generate` on the head node and copy ~/.ray/auth_token to every other"


CPUS = 100_000  # of a Ray of our own, whose hosts share the cores of this machine as processes would


class BackgroundInit:
    """A Ray of our own that starts while this process still imports what it is made of."""

    running: BackgroundInit | None = None

    def __init__(self, insecure: bool) -> None:
        authenticate("local", insecure)
        import ray

        self._ray, self._there, self._over = ray, threading.Event(), threading.Event()
        self._failed: BaseException | None = None
        threading.Thread(target=self._live, daemon=True).start()
        atexit.register(self.end)
        BackgroundInit.running = self

    def _live(self) -> None:
        try:
            _start()
        except BaseException as error:
            self._failed = error
        self._there.set()
        self._over.wait()  # the kernel ends processes of Ray with the thread that has started them

    def wait(self) -> None:
        """Until it is there; raises what kept it from that."""
        self._there.wait()
        if self._failed is not None:
            raise self._failed

    def leave(self, code: int) -> None:
        """Exit at once, with what is there of a Ray that nobody needs."""
        import psutil

        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                process.kill()
        if _private_token.cache_info().currsize:
            shutil.rmtree(_private_token().parent, ignore_errors=True)
        os._exit(code)

    def end(self) -> None:
        """Stop it."""
        BackgroundInit.running = None
        self._there.wait()
        self._ray.shutdown()
        self._over.set()


@contextmanager
def connected(address: str, insecure: bool, seconds: float) -> Iterator[None]:
    """Be connected to Ray inside; a connection that this process already has is used and left as it is."""
    check_address(address)
    authenticate(address, insecure)
    try:
        import ray
    except ImportError:
        raise SetupProblem("The Ray engine needs Ray: pip install 'trooprl[ray]'.") from None
    early = BackgroundInit.running
    if ray.is_initialized() and early is None:
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        if early is not None and address == "local":
            early.wait()
        elif address == "local":
            _start()
        else:
            _join(address, seconds)
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():  # Ray puts its own in their place
                signal.signal(number, handler)
        yield
    finally:
        early.end() if early is not None else ray.shutdown()


def check_address(address: str) -> None:
    """BadInput if it is not one."""
    _, colon, port = address.removeprefix("ray://").rpartition(":")
    if address not in ("local", "auto") and not (colon and port.isdigit() and 0 < int(port) < 65536):
        raise BadInput(
            f"--engine.address is {address!r}; it must be local, auto, HOST:PORT or ray://HOST:PORT."
        )


def authenticate(address: str, insecure: bool) -> None:
    """Choose the token before Ray reads it: a private one on this machine, the cluster's elsewhere."""
    mode = os.environ.get("RAY_AUTH_MODE", "").lower()
    if insecure:
        if mode != "token":
            os.environ["RAY_AUTH_MODE"] = "disabled"
        return
    if mode not in ("", "token"):
        raise BadInput(f"RAY_AUTH_MODE is {mode!r}; unset it, or say --engine.insecure.")
    os.environ["RAY_AUTH_MODE"] = "token"
    if _has_token():
        return
    if address != "local":
        raise SetupProblem(f"No Ray token is here: {GET_TOKEN}, or say --engine.insecure.")
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(_private_token())


def _reread() -> None:
    """Whoever imported Ray before us made it read its settings before the token was chosen."""
    with suppress(ImportError, AttributeError):
        importlib.import_module("ray._raylet").Config.initialize("")


def _has_token() -> bool:
    if os.environ.get("RAY_AUTH_TOKEN"):
        return True
    path = os.environ.get("RAY_AUTH_TOKEN_PATH")
    return Path(path).is_file() if path else (Path.home() / ".ray" / "auth_token").is_file()


@functools.cache  # Ray reads its token once in a process
def _private_token() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="troop-"))  # nobody else can look into it
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "token"
    path.write_text(secrets.token_hex(32))
    path.chmod(0o600)
    return path


def _quiet() -> dict[str, Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    return {"logging_level": logging.ERROR, "log_to_driver": False}


def _start() -> None:
    """A Ray of our own that only this machine can reach."""
    import ray
    from ray._private import node, parameter, ray_constants

    _reread()
    # Nothing to scale, nobody who reads the workers' logs or looks at a dashboard: three processes fewer.
    lean = functools.partial(parameter.RayParams, no_monitor=True, include_log_monitor=False)
    try:
        with (
            thread_limit(1),  # workers import torch before they know of more
            # Ray turns 127.0.0.1 into an address that others can reach, unless it believes it is a desktop.
            _replaced(ray_constants, "ENABLE_RAY_CLUSTER", False),
            _replaced(parameter, "RayParams", lean),
            _replaced(node.Node, "start_api_server", lambda self, **_: None),
        ):
            ray.init(
                address="local",
                num_cpus=CPUS,
                include_dashboard=False,
                _node_ip_address="127.0.0.1",
                _system_config={
                    "task_events_report_interval_ms": 0,  # what a dashboard would show
                    "preload_python_modules": ["torch"],  # while the launcher still imports it
                },
                **_quiet(),
            )
    except Exception as error:  # of many kinds: processes that die, time-outs, no room in shared memory
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SetupProblem(f"Ray could not start on this machine: {reason}") from error


@contextmanager
def _replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Another value inside, where Ray has no setting for it."""
    before = getattr(owner, name, None)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _join(address: str, seconds: float) -> None:
    """Connect to a cluster that runs; SetupProblem in one sentence if nobody answers in time."""
    import ray

    _reread()
    if address != "auto":
        _probe_port(address, seconds)
    failure = _within(seconds, lambda: ray.init(address=address, **_quiet()))
    if failure is None:
        return
    reason = (str(failure).strip().splitlines() or [type(failure).__name__])[0]
    if address == "auto" and isinstance(failure, ConnectionError):
        reason = "no Ray runs on this machine; start one with `ray start --head`"
    reason = reason if reason.endswith(("?", ".")) else f"{reason}."
    raise SetupProblem(f"No Ray cluster could be reached at {address}: {reason}") from failure


def _probe_port(address: str, seconds: float) -> None:
    """Ray itself tries for a minute and may end the process; a plain connection tells sooner."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise SetupProblem(f"Nobody answers at --engine.address {address}: {reason}.") from None


def _within(seconds: float, act: Callable[[], object]) -> BaseException | None:
    """What went wrong, if anything did; a TimeoutError if it took longer than this."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        return TimeoutError(f"no answer for {seconds:.0f} s; is the token here the cluster's?")
    return failed[0] if failed else None
