"""Roles that die, hang and wait on demand; without torch, importable by a host's process."""

import ctypes
import os
import time
from pathlib import Path

from troop.core.remote import call_async, send


class CheckpointSource:
    """Keeps what it is told, in order; may be slow until a file is there."""

    def __init__(self, paused_until=None):
        self.kept, self.cuts, self.paused_until = [], 0, paused_until

    def add(self, number, blob=b""):
        """Keep the number."""
        while self.paused_until and not Path(self.paused_until).exists():
            time.sleep(0.01)
        self.kept.append(number)

    def count(self):
        """How many were kept."""
        return len(self.kept)

    def on_restart(self):
        """Peers went on without it."""
        self.cuts += 1

    def gauges(self):
        """Where it lives."""
        return {"pid/keeper": os.getpid()}

    def state_dict(self):
        """All of it."""
        return {"kept": list(self.kept), "cuts": self.cuts}

    def load_state_dict(self, state):
        """Take it back."""
        self.kept, self.cuts = list(state["kept"]), state["cuts"]


class Teller:
    """Tells `first` and what follows, asks now and then; fails as it is told to, once per marker file."""

    restart_fresh = True

    def __init__(self, keeper, fault=None, marker=None, fault_at=20, blob=0, name="teller", first=1):
        self.keeper, self.fault, self.marker, self.fault_at = keeper, fault, marker, fault_at
        self.told, self.blob, self.name, self.first = 0, b"x" * blob, name, first

    def step(self):
        """One number."""
        self.told += 1
        if self.fault and self.told == self.fault_at:
            self._fail()
        send(self.keeper.add, self.first + self.told - 1, self.blob)
        if self.told % 7 == 0:
            call_async(self.keeper.count).result()
        time.sleep(0.0005)
        return {"count/env_steps": 1}

    def _fail(self):
        if self.marker:
            if Path(self.marker).exists():
                return
            Path(self.marker).write_text("x")
        if self.fault == "abort":
            os.abort()
        if self.fault == "exit":
            os._exit(3)
        if self.fault == "hang":
            self.hang_for_ever()
        raise OSError("the simulator is gone")

    def hang_for_ever(self):
        """Its name is to be found in a stack."""
        while True:
            time.sleep(1)

    def gauges(self):
        """Where it lives."""
        machine = float(os.environ.get("MACHINE", "0"))
        return {f"pid/{self.name}": os.getpid(), f"told/{self.name}": self.told, f"on/{self.name}": machine}

    def state_dict(self):
        """Numbers told."""
        return {"told": self.told}

    def load_state_dict(self, state):
        """Go on; never after a death, for a teller is expendable."""
        self.told = state["told"]


class Learner:
    """Counts updates and is restored from what was saved."""

    def __init__(self, keeper):
        self.keeper, self.updates = keeper, 0

    def step(self):
        """One update."""
        if self.keeper.count() == 0:
            return None
        self.updates += 1
        time.sleep(0.001)
        return {"count/updates": 1}

    def gauges(self):
        """Where it lives."""
        return {"pid/learner": os.getpid()}

    def state_dict(self):
        """Updates so far."""
        return {"updates": self.updates}

    def load_state_dict(self, state):
        """Go on."""
        self.updates = state["updates"]


class OutlierFilter:
    """Takes its time over an evaluation."""

    def __init__(self, keeper, seconds=0.0):
        self.keeper, self.seconds = keeper, seconds

    def step(self):
        """How many were kept."""
        time.sleep(self.seconds)
        return {"eval/return_mean": float(self.keeper.count())}

    def gauges(self):
        """Where it lives."""
        return {"pid/judge": os.getpid()}


class Broken:
    """Cannot be built."""

    def __init__(self):
        raise ValueError("no such device")


class Threads:
    """Says how many threads its work may take, as torch and as OpenMP see it."""

    def step(self):
        """Nothing."""
        return {"count/env_steps": 1}

    def gauges(self):
        """Both."""
        import torch

        threads = {"threads/openmp": torch.get_num_threads(), "threads/torch": torch.get_num_threads()}
        for library in (Path(torch.__file__).parent / "lib").glob("lib?omp*.so*"):
            threads["threads/openmp"] = ctypes.CDLL(str(library)).omp_get_max_threads()
        return threads
