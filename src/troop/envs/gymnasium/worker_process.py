"""The process that steps some Gymnasium envs; imports no torch, so that it starts fast and stays small."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import socket
import sys
import traceback
from types import FrameType
from typing import IO, Any

import numpy as np

from troop.core.errors import TroopError
from troop.core.locations import describe_error
from troop.core.signals import STOP_SIGNALS
from troop.envs.gymnasium.checks import CheckedEnv
from troop.envs.gymnasium.user_envs import EnvConstructor
from troop.envs.pipe import read_message, write_message

PR_SET_PDEATHSIG = 1
IDLE_S = 60.0  # a process without envs exits after this time

Leaves = list[tuple[list[str | int], np.ndarray]]


def main() -> None:
    """Serve the requests that arrive on the socket `argv[1]` until it is closed."""
    parent, connection = int(sys.argv[3]), socket.socket(fileno=int(sys.argv[1]))
    _exit_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):  # a terminal or a cluster signals all processes
        signal.signal(number, _ignore)
    faulthandler.register(signal.SIGUSR1, int(sys.argv[2]))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    with connection.makefile("rb") as requests, connection.makefile("wb") as replies:
        try:
            _serve(connection, requests, replies)
        except (EOFError, OSError):
            return  # the parent has closed the socket, or no envs were made for long


def _serve(connection: socket.socket, requests: IO[bytes], replies: IO[bytes]) -> None:
    vector: Any = None
    while True:
        connection.settimeout(IDLE_S if vector is None else None)
        request, arrays = read_message(requests)
        connection.settimeout(None)
        try:
            if request["do"] == "make":
                sys.path[:] = request["path"]
                vector = _make(request)
                write_message(replies, {})
            elif request["do"] == "close":
                vector, closing = None, vector
                closing.close()
                write_message(replies, {})
            elif request["do"] == "reset":
                obs = _reset(vector, request)
                write_message(replies, *_message(flatten(obs)))
            else:
                _step(vector, arrays[0], replies)
        except BaseException as error:  # whatever a user's env raises
            trace = "".join(traceback.format_exception(error))[-20_000:]
            reason = str(error) if isinstance(error, TroopError) else describe_error(error)
            kind = type(error).__name__ if isinstance(error, TroopError) else ""
            write_message(replies, {"error": reason, "kind": kind, "trace": trace})


def _make(request: dict[str, Any]) -> Any:  # noqa: ANN401 - a gymnasium.vector.SyncVectorEnv
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    id, settings = request["id"], tuple((name, value) for name, value in request["settings"])
    constructor = EnvConstructor(id, settings)
    makers = [lambda: CheckedEnv(constructor(), id)] * request["envs"]
    return SyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode[request["autoreset"].upper()])


def _reset(vector: Any, request: dict[str, Any]) -> Any:  # noqa: ANN401
    if "mask" in request:
        return vector.reset(options={"reset_mask": np.array(request["mask"], dtype=bool)})[0]
    return vector.reset(seed=request["seeds"])[0]


def _step(vector: Any, action: np.ndarray, replies: IO[bytes]) -> None:  # noqa: ANN401
    raw, reward, terminated, truncated, info = vector.step(action)
    ended = np.flatnonzero(info["_final_obs"]) if "_final_obs" in info else np.zeros(0, np.int64)
    final = [info["final_obs"][row] for row in ended]
    header, arrays = _message(flatten(raw))
    header["final"] = ended.tolist()
    stacked = [np.stack([_lookup(obs, path) for obs in final]) for path in header["paths"]] if final else []
    write_message(replies, header, [*arrays, reward, terminated, truncated, *stacked])


def flatten(obs: Any, path: tuple[str | int, ...] = ()) -> Leaves:  # noqa: ANN401
    """Return the arrays of a nested observation with their paths."""
    if isinstance(obs, dict):
        return [leaf for key, value in obs.items() for leaf in flatten(value, (*path, key))]
    if isinstance(obs, tuple):
        return [leaf for i, value in enumerate(obs) for leaf in flatten(value, (*path, i))]
    return [(list(path), np.asarray(obs))]


def _lookup(obs: Any, path: list[str | int]) -> np.ndarray:  # noqa: ANN401
    """Return one array of an observation; an env may order the keys unlike its space."""
    for key in path:
        obs = obs[key]
    return np.asarray(obs)


def _message(leaves: Leaves) -> tuple[dict[str, Any], list[np.ndarray]]:
    return {"paths": [path for path, _ in leaves]}, [array for _, array in leaves]


def _exit_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent dies, even while an env hangs."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


if __name__ == "__main__":
    main()
