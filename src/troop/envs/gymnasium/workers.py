"""EnvWorkers: Gymnasium envs in worker processes; one that hangs, raises or dies is replaced alone."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from troop.core import errors
from troop.core.env_calls import EnvFailure
from troop.core.errors import EnvFault
from troop.core.locations import user_location
from troop.core.signals import STOP_SIGNALS
from troop.envs.pipe import read_message, write_message
from troop.envs.settings import Setting

MODULE = "troop.envs.gymnasium.worker_process"
MAX_REPLACEMENTS = 5  # of one worker within REPLACEMENT_WINDOW_S
REPLACEMENT_WINDOW_S = 600.0
START_LIMIT_S = 300.0  # to import the module of the user and to build the envs
REPLY_GRACE_S = 5.0  # to read the reply of a worker that had the whole limit while another was replaced
SEED_STRIDE = 1_000_003  # between the seeds of a worker and its replacement
_STACK_LINE = re.compile(r'File "(.*)", line (\d+) in (.*)')

Columns = list[np.ndarray]
Reply = tuple[dict[str, Any], Columns]


class WorkerLost(Exception):
    """A worker process hung, died, or its env raised; the message says which and where."""


class WorkerProcess:
    """One process, and the socket to it; `idle` keeps processes without envs, which start faster again."""

    idle: ClassVar[list[WorkerProcess]] = []

    def __init__(self) -> None:
        own_end, child_end = socket.socketpair()
        self.stack_fd = os.memfd_create("stack")
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # until the child handles them
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", MODULE, *map(str, (child_end.fileno(), self.stack_fd, os.getpid()))],
                stdin=subprocess.DEVNULL,
                pass_fds=(child_end.fileno(), self.stack_fd),
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            child_end.close()
        self.socket = own_end
        self._requests, self._replies = own_end.makefile("wb"), own_end.makefile("rb")

    @classmethod
    def take(cls) -> WorkerProcess:
        """Return an idle process that still runs, or a new one."""
        while cls.idle:
            worker = cls.idle.pop()
            if worker.process.poll() is None:
                return worker
            worker.kill()
        return cls()

    def send(self, request: dict[str, Any], arrays: Columns, seconds: float) -> None:
        """Send a request. Raises WorkerLost."""
        self.socket.settimeout(seconds)
        try:
            write_message(self._requests, request, arrays)
        except OSError as error:
            raise WorkerLost(self._describe(error, seconds)) from error

    def receive(self, seconds: float, limit_s: float | None = None) -> Reply:
        """Return the reply, which may take `seconds` more, `limit_s` in all.

        Raises WorkerLost, or the TroopError that the worker reports.
        """
        self.socket.settimeout(max(seconds, 0.001))
        try:
            reply, arrays = read_message(self._replies)
        except (OSError, EOFError) as error:
            raise WorkerLost(self._describe(error, limit_s or seconds)) from error
        if reply.get("kind"):
            raise getattr(errors, reply["kind"], EnvFault)(reply["error"])
        if "error" in reply:
            raise WorkerLost(f"raised {reply['error']}") from WorkerTrace(reply["trace"])
        return reply, arrays

    def _describe(self, error: Exception, seconds: float) -> str:
        if isinstance(error, TimeoutError):
            return f"did not return within {seconds:.0f} s{self._location()}"
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        return f"ended its process ({f'signal {-code}' if code < 0 else f'exit code {code}'})"

    def _location(self) -> str:
        """Let the process write its stack; return the line of the user's file."""
        self.process.send_signal(signal.SIGUSR1)
        time.sleep(0.3)
        text = os.pread(self.stack_fd, 20_000, 0).decode(errors="replace")
        main_thread = text[text.find("Current thread") if "Current thread" in text else 0 :]
        frames = [
            traceback.FrameSummary(path, int(line), name)
            for path, line, name in _STACK_LINE.findall(main_thread)
        ]
        location = user_location(frames[::-1])  # the innermost frame is written first
        return f"; it was at {location}" if location else ""

    def kill(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for file in (self._requests, self._replies, self.socket):
            try:
                file.close()
            except OSError:
                continue
        os.close(self.stack_fd)


class WorkerTrace(Exception):
    """The traceback in a worker process, shown as the cause of an error in this process."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


@dataclass
class EnvShare:
    """The envs `first` to `first + envs - 1`, the process that steps them, and its newest reply."""

    first: int
    envs: int
    process: WorkerProcess
    newest: Reply = field(default_factory=lambda: ({}, []))
    replaced: list[float] = field(default_factory=list)  # when

    @property
    def rows(self) -> slice:
        """Rows of these envs."""
        return slice(self.first, self.first + self.envs)


class EnvWorkers:
    """A Gymnasium vector env whose envs are divided among processes.

    `lost` marks the rows whose episodes were dropped because their worker was replaced; the adapter clears
    it. `notes` says why.
    """

    def __init__(
        self,
        id: str,
        settings: tuple[Setting, ...],
        envs: int,
        autoreset: str,
        workers: int,
        limit_s: float,
    ) -> None:
        self.id, self.limit_s = id, limit_s
        self.notes: list[str] = []
        self.lost = np.zeros(envs, dtype=bool)
        self._make = {"do": "make", "id": id, "settings": settings, "autoreset": autoreset}
        self._seeds = list(range(envs))
        self._failed_send: dict[int, WorkerLost] = {}
        self._pending = True  # whether replies may be unread
        sizes = [len(part) for part in np.array_split(range(envs), min(workers, envs))]
        firsts = np.cumsum([0, *sizes[:-1]]).tolist()
        processes = [WorkerProcess.take() for _ in sizes]  # all start at the same time
        self._shares = [EnvShare(*values) for values in zip(firsts, sizes, processes, strict=True)]
        try:
            for share in self._shares:
                self._send_make(share)
            for share in self._shares:
                share.process.receive(START_LIMIT_S)
            self._pending = False
        except WorkerLost as error:
            self.kill()
            raise EnvFailure(f"__init__() of env '{id}' {error}") from error
        except BaseException:
            self.kill()
            raise

    def _send_make(self, share: EnvShare) -> None:
        request = self._make | {"envs": share.envs, "path": [os.path.abspath(path) for path in sys.path]}
        share.process.send(request, [], START_LIMIT_S)

    def reset(self, seed: list[int] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Reset all envs with a seed for each, or those of `options["reset_mask"]`; return (obs, {})."""
        if seed is not None:
            self._seeds = seed
            requests = [{"do": "reset", "seeds": seed[share.rows]} for share in self._shares]
        else:
            mask = (options or {})["reset_mask"]
            requests = [{"do": "reset", "mask": mask[share.rows].tolist()} for share in self._shares]
        self._pending = True
        for share, request in zip(self._shares, requests, strict=True):
            share.newest = self._exchange_reset(share, request)
        self._pending = False
        paths = self._shares[0].newest[0]["paths"]
        return _nested(paths, _concatenate([share.newest[1][: len(paths)] for share in self._shares])), {}

    def _exchange_reset(self, share: EnvShare, request: dict[str, Any]) -> Reply:
        if not any(request.get("mask", [True])):  # Gymnasium refuses to reset no env
            return share.newest
        try:
            share.process.send(request, [], self.limit_s)
            return share.process.receive(self.limit_s)
        except WorkerLost as error:
            return self._replace(share, "reset", error)

    def step_async(self, action: np.ndarray) -> None:
        """Start a step of all envs."""
        self._pending = True
        for index, share in enumerate(self._shares):
            try:
                share.process.send({"do": "step"}, [np.ascontiguousarray(action[share.rows])], self.limit_s)
            except WorkerLost as error:
                self._failed_send[index] = error

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Return (obs, reward, terminated, truncated, info); rows of replaced workers have zeros."""
        deadline = time.monotonic() + self.limit_s
        for index, share in enumerate(self._shares):
            try:
                if error := self._failed_send.pop(index, None):
                    raise error
                share.newest = share.process.receive(deadline - time.monotonic(), self.limit_s)
            except WorkerLost as error:
                header, arrays = self._replace(share, "step", error)
                zeros, false = np.zeros(share.envs), np.zeros(share.envs, dtype=bool)
                share.newest = header | {"final": []}, [*arrays, zeros, false, false]
                deadline = max(deadline, time.monotonic() + REPLY_GRACE_S)
        self._pending = False
        paths = self._shares[0].newest[0]["paths"]
        count = len(paths)
        columns = _concatenate([share.newest[1][: count + 3] for share in self._shares])
        info: dict[str, Any] = {}
        final = np.full(len(columns[count]), None, dtype=object)
        for share in self._shares:
            header, arrays = share.newest
            for i, row in enumerate(header["final"]):
                final[share.first + row] = _nested(paths, [array[i] for array in arrays[count + 3 :]])
                info = {"final_obs": final}
        return _nested(paths, columns[:count]), columns[count], columns[count + 1], columns[count + 2], info

    def _replace(self, share: EnvShare, method: str, error: WorkerLost) -> Reply:
        """Start another process for the envs of a share; return the observations of their new episodes.

        Raises EnvFailure if this worker was replaced too often.
        """
        envs = (
            f"env {share.first}" if share.envs == 1 else f"envs {share.first}-{share.first + share.envs - 1}"
        )
        text = f"{method}() of env '{self.id}' {error}"
        while True:
            now = time.monotonic()
            share.replaced[:] = [when for when in share.replaced if now - when < REPLACEMENT_WINDOW_S]
            if len(share.replaced) >= MAX_REPLACEMENTS:
                raise EnvFailure(
                    f"{text}; its worker was replaced {MAX_REPLACEMENTS} times within ten minutes"
                ) from error
            share.replaced.append(now)
            self.notes.append(f"{text}; the worker of {envs} was replaced, and new episodes began there")
            share.process.kill()
            share.process = WorkerProcess()
            offset = SEED_STRIDE * len(share.replaced)
            self._seeds[share.rows] = [(seed + offset) % 2**31 for seed in self._seeds[share.rows]]
            try:
                self._send_make(share)
                share.process.receive(START_LIMIT_S)
                share.process.send({"do": "reset", "seeds": self._seeds[share.rows]}, [], self.limit_s)
                reply = share.process.receive(self.limit_s)
            except WorkerLost as again:
                text, error = f"reset() of env '{self.id}' {again}", again
                continue
            self.lost[share.rows] = True
            return reply

    def close(self) -> None:
        """Close the envs; their processes wait for new ones for a minute."""
        if self._pending:  # of a step that failed
            self.kill()
        for share in self._shares:
            try:
                share.process.send({"do": "close"}, [], self.limit_s)
                share.process.receive(self.limit_s)
                WorkerProcess.idle.append(share.process)
            except (WorkerLost, errors.TroopError):
                share.process.kill()
        self._shares.clear()

    def kill(self) -> None:
        """End all processes at once."""
        for share in self._shares:
            share.process.kill()
        self._shares.clear()


def _concatenate(parts: list[Columns]) -> Columns:
    return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]


def _nested(paths: list[list[str | int]], arrays: Columns) -> Any:  # noqa: ANN401
    """Return the arrays in nested dicts; indices of tuples become keys."""
    if paths == [[]]:
        return arrays[0]
    root: dict[str | int, Any] = {}
    for path, array in zip(paths, arrays, strict=True):
        place = root
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = array
    return root
