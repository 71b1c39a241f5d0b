"""Roles that fail, hang and block on demand; importable by host processes and without torch."""

import ctypes
import os
import time
from pathlib import Path

from troop.core.remote import call_async, send


class NumberStore:
    """Stores numbers in the order of arrival; `add` blocks until the file `paused_until` exists."""

    def __init__(self, paused_until=None):
        self.numbers, self.restarts, self.paused_until = [], 0, paused_until

    def add(self, number, blob=b""):
        while self.paused_until and not Path(self.paused_until).exists():
            time.sleep(0.01)
        self.numbers.append(number)

    def count(self):
        return len(self.numbers)

    def on_restart(self):
        self.restarts += 1

    def gauges(self):
        return {"pid/store": os.getpid()}

    def state_dict(self):
        return {"numbers": list(self.numbers), "restarts": self.restarts}

    def load_state_dict(self, state):
        self.numbers, self.restarts = list(state["numbers"]), state["restarts"]


class NumberSender:
    """Sends consecutive numbers, starting with `first`, and calls `count` after every seventh.

    Fails before it sends number `fault_at`: only if the file `marker` does not exist, which it then creates.
    """

    restart_fresh = True

    def __init__(self, store, fault=None, marker=None, fault_at=20, blob=0, name="sender", first=1):
        self.store, self.fault, self.marker, self.fault_at = store, fault, marker, fault_at
        self.sent, self.blob, self.name, self.first = 0, b"x" * blob, name, first

    def step(self):
        self.sent += 1
        if self.fault and self.sent == self.fault_at:
            self._fail()
        send(self.store.add, self.first + self.sent - 1, self.blob)
        if self.sent % 7 == 0:
            call_async(self.store.count).result()
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
        """Tests look for the name of this method in stack traces."""
        while True:
            time.sleep(1)

    def gauges(self):
        machine = float(os.environ.get("MACHINE", "0"))
        return {f"pid/{self.name}": os.getpid(), f"sent/{self.name}": self.sent, f"on/{self.name}": machine}

    def state_dict(self):
        return {"sent": self.sent}

    def load_state_dict(self, state):
        """Restore in a resumed run only: `restart_fresh` is set."""
        self.sent = state["sent"]


class CountingLearner:
    """Counts updates, as soon as the store has a number."""

    def __init__(self, store):
        self.store, self.updates = store, 0

    def step(self):
        if self.store.count() == 0:
            return None
        self.updates += 1
        time.sleep(0.001)
        return {"count/updates": 1}

    def gauges(self):
        return {"pid/learner": os.getpid()}

    def state_dict(self):
        return {"updates": self.updates}

    def load_state_dict(self, state):
        self.updates = state["updates"]


class SlowEvaluator:
    """Returns the count of the store as evaluation, after some seconds."""

    def __init__(self, store, seconds=0.0):
        self.store, self.seconds = store, seconds

    def step(self):
        time.sleep(self.seconds)
        return {"eval/return_mean": float(self.store.count())}

    def gauges(self):
        return {"pid/evaluator": os.getpid()}


class FailsToBuild:
    """Raises in its constructor."""

    def __init__(self):
        raise ValueError("no such device")


class ThreadCounter:
    """Reports the thread limits of torch and of OpenMP as gauges."""

    def step(self):
        return {"count/env_steps": 1}

    def gauges(self):
        import torch

        threads = {"threads/openmp": torch.get_num_threads(), "threads/torch": torch.get_num_threads()}
        for library in (Path(torch.__file__).parent / "lib").glob("lib?omp*.so*"):
            threads["threads/openmp"] = ctypes.CDLL(str(library)).omp_get_max_threads()
        return threads
