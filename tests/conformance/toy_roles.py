"""Roles for engine tests: small, without torch, and importable by a host's process."""

import os
from pathlib import Path

from troop.core.remote import Prefetch, batched, call_async, readonly, send


class Counter:
    """Ten env steps a step."""

    def __init__(self, fails_at=None, notes=(), closed=None):
        self.count, self.fails_at, self.notes, self.closed = 0, fails_at, list(notes), closed

    def step(self):
        """One more."""
        self.count += 1
        if self.count == self.fails_at:
            raise ZeroDivisionError("the seventh step is broken")
        return {"count/env_steps": 10, "count/updates": 1, "loss": float(self.count)}

    def counted(self):
        """Steps so far."""
        return self.count

    def close(self):
        """Say that it was closed."""
        if self.closed:
            with open(self.closed, "a") as file:
                file.write(f"{self.count}\n")

    def state_dict(self):
        """The count."""
        return {"count": self.count}

    def load_state_dict(self, state):
        """Go on from there."""
        self.count = state["count"]


class OutlierFilter:
    """Evaluates a counter: its return is the count."""

    def __init__(self, judged):
        self.judged = judged

    def step(self):
        """What is there now."""
        return {"eval/return_mean": self.judged.counted()}


class Idle:
    """Never has anything to do."""

    def step(self):
        """Nothing."""


class ReplayBuffer:
    """Takes numbers; may fail at one, or be slow until a file is there."""

    def __init__(self, fails_at=None, paused_until=None):
        self.numbers, self.fails_at, self.paused_until, self.most = [], fails_at, paused_until, 0

    def add(self, number):
        """Keep it."""
        if number == self.fails_at:
            raise ValueError(f"number {number} is broken")
        self.numbers.append(number)

    def add_blob(self, blob):
        """Keep its length."""
        if self.paused_until:
            import time

            while not Path(self.paused_until).exists():
                time.sleep(0.01)
        self.numbers.append(len(blob))

    def count(self):
        """How many."""
        return len(self.numbers)

    def check(self, number):
        """Fails as `add` does."""
        if number == self.fails_at:
            raise ValueError(f"number {number} is broken")
        return True

    @readonly
    def latest(self, after):
        """The newest number, if it is newer."""
        return None if not self.numbers or self.numbers[-1] <= after else (self.numbers[-1], {})

    def gauges(self):
        """Where it lives."""
        return {"pid/store": os.getpid(), "rows": len(self.numbers)}

    def state_dict(self):
        """All numbers."""
        return {"numbers": list(self.numbers)}

    def load_state_dict(self, state):
        """Take them back."""
        self.numbers = list(state["numbers"])


class Producer:
    """Tells its store 1, 2, 3, ... and checks that calls come after tells."""

    def __init__(self, store, how="tell"):
        self.store, self.how, self.sent = store, how, 0

    def step(self):
        """One number."""
        self.sent += 1
        if self.how == "tell":
            send(self.store.add, self.sent)
        elif self.how == "call":
            self.store.check(self.sent)
        elif self.how == "both":
            asked = call_async(self.store.count)
            send(self.store.add, self.sent)
            assert self.store.count() == self.sent
            # Same thread: the question waits for its answer to be wanted. Elsewhere: it was asked first.
            assert asked.result() in (self.sent - 1, self.sent)
        return {"count/env_steps": 1, "count/updates": 1}

    def gauges(self):
        """Where it lives."""
        return {"pid/producer": os.getpid()}

    def state_dict(self):
        """Numbers sent."""
        return {"sent": self.sent}

    def load_state_dict(self, state):
        """Go on."""
        self.sent = state["sent"]


class Consumer:
    """Takes answers asked ahead."""

    def __init__(self, store):
        self.prefetch = Prefetch(store.latest, depth=2)
        self.seen = []

    def step(self):
        """One answer, if there is one."""
        self.prefetch.fill(0)
        answer = self.prefetch.poll()
        self.prefetch.fill(0)
        if answer is None:
            return None
        self.seen.append(answer[0])
        assert self.seen == sorted(self.seen)
        return {"count/updates": 1}


class Shouter:
    """Tells big letters as fast as it can."""

    def __init__(self, store, size, heard=None):
        self.store, self.blob, self.heard, self.sent = store, b"x" * size, heard, 0

    def step(self):
        """One letter."""
        send(self.store.add_blob, self.blob)
        self.sent += 1
        if self.heard:
            Path(self.heard).write_text(str(self.sent))
        return {"count/env_steps": 1}


class Neighbour:
    """Reports whether its peer is the object itself."""

    def __init__(self, peer):
        self.peer = peer

    def step(self):
        """A metric of it."""
        return {"count/env_steps": 1, "same": float(isinstance(self.peer, ReplayBuffer))}


class Inference:
    """Doubles rows; remembers how many calls and rows it served."""

    def __init__(self):
        self.calls, self.rows = 0, 0

    @batched
    def act(self, ids, obs):
        """Row-wise."""
        self.calls += 1
        self.rows += len(ids)
        return {"action": obs["x"] * 2 + ids[:, None]}

    def gauges(self):
        """How much was joined."""
        return {"calls": self.calls, "served": self.rows}


class Runner:
    """Asks for actions for its rows and checks that they are its own."""

    def __init__(self, inference, first, rows=3):
        import numpy

        self.inference, self.ids = inference, numpy.arange(first, first + rows)
        self.obs = {"x": numpy.random.default_rng(first).normal(size=(rows, 2)).astype("float32")}

    def step(self):
        """One vector step."""
        action = self.inference.act(self.ids, self.obs)["action"]
        assert (action == self.obs["x"] * 2 + self.ids[:, None]).all()
        return {"count/env_steps": len(self.ids)}
