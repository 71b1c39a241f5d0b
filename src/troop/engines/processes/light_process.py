"""LightProcess: a process forked from a server of its own that has not imported torch.

A fork of the fork server of all other hosts would have torch and numba mapped whether it uses them or not.
"""

from __future__ import annotations

import dataclasses
import io
import os
import sys
from multiprocessing import context, forkserver, popen_forkserver, process, reduction, spawn, util
from typing import Any

from troop.core.program import leaves
from troop.engines.private_folder import use_for_multiprocessing
from troop.engines.runtime import block_stop_signals, thread_limit

_server = forkserver.ForkServer()


def start_light_server(value: object) -> None:
    """Start the server, if it does not run, with the modules of `modules_of(value)` already imported.

    A module may list in PRELOAD others that its functions import later.
    """
    named = modules_of(value)
    later = [name for module in named for name in getattr(sys.modules.get(module), "PRELOAD", ())]
    _server.set_forkserver_preload(["numpy", "troop.engines.processes.child", *named, *later])
    use_for_multiprocessing()
    with block_stop_signals(), thread_limit(1):
        _server.ensure_running()


def modules_of(value: object) -> list[str]:
    """Return the modules that define the classes of a value, of what it contains, and of its fields."""
    names: set[str] = set()
    for item in leaves(value):
        kind = item if isinstance(item, type) else type(item)
        names.add(kind.__module__)
        if dataclasses.is_dataclass(kind) and kind is not item:
            names.update(modules_of([getattr(item, field.name) for field in dataclasses.fields(kind)]))
    return sorted(names - {"__main__", "builtins"})


class LightProcess(process.BaseProcess):
    """A multiprocessing.Process forked from the light server.

    It imports the main module only if its arguments refer to it: a script that imports torch would otherwise
    be run once more in every process.
    """

    _start_method = "forkserver"

    @staticmethod
    def _Popen(process_obj: process.BaseProcess) -> Any:  # noqa: ANN401, N802 - the name is multiprocessing's
        return _LightPopen(process_obj)


class _LightPopen(popen_forkserver.Popen):
    _fds: list[int]

    def _launch(self, process_obj: Any) -> None:  # noqa: ANN401
        """Start the process as the base class does, from the light server."""
        preparation, content = io.BytesIO(), io.BytesIO()
        data = spawn.get_preparation_data(process_obj._name)
        context.set_spawning_popen(self)
        try:
            reduction.dump(process_obj, content)
            if b"__main__" not in content.getvalue():
                data = {key: value for key, value in data.items() if not key.startswith("init_main")}
            reduction.dump(data, preparation)
        finally:
            context.set_spawning_popen(None)
        self.sentinel, write_end = _server.connect_to_new_process(self._fds)
        parent_end = os.dup(write_end)  # the child ends when all of them are closed
        self.finalizer = util.Finalize(self, _close_all, ((parent_end, self.sentinel),))
        with open(write_end, "wb", closefd=True) as pipe:
            pipe.write(preparation.getbuffer())
            pipe.write(content.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


def _close_all(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
