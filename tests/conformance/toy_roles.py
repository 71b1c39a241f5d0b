"""Small roles for engine tests, without torch; importable by host processes."""

import os

from troop.core.remote import Prefetch, batched, call_async, readonly, send


class Counter:
    """Counts its steps; each step reports ten env steps and one update."""

    def __init__(self, fails_at=None, notes=(), close_log=None, third_step_note=None):
        self.count, self.fails_at, self.notes, self.close_log = 0, fails_at, list(notes), close_log
        self.third_step_note = third_step_note

    def step(self):
        self.count += 1
        if self.count == self.fails_at:
            raise ZeroDivisionError("the seventh step is broken")
        if self.count == 3 and self.third_step_note:
            self.notes.append(self.third_step_note)
        return {"count/env_steps": 10, "count/updates": 1, "loss": float(self.count)}

    def steps(self):
        return self.count

    def close(self):
        """Append the count to the file `close_log`, if one is given."""
        if self.close_log:
            with open(self.close_log, "a") as file:
                file.write(f"{self.count}\n")

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class CountEvaluator:
    """Returns the count of a Counter as evaluation."""

    def __init__(self, counter):
        self.counter = counter

    def step(self):
        return {"eval/return_mean": self.counter.steps()}


class Idle:
    """Never has anything to do."""

    def step(self):
        return None


class NumberStore:
    """Stores numbers; `add` and `check` fail for the number `fails_at`."""

    def __init__(self, fails_at=None):
        self.numbers, self.fails_at = [], fails_at

    def add(self, number):
        self.check(number)
        self.numbers.append(number)

    def add_blob(self, blob):
        """Store the length of the blob."""
        self.numbers.append(len(blob))

    def count(self):
        return len(self.numbers)

    def check(self, number):
        if number == self.fails_at:
            raise ValueError(f"number {number} is broken")
        return True

    @readonly
    def latest(self, after):
        """Return the newest number if it is larger than `after`, as version without weights."""
        return None if not self.numbers or self.numbers[-1] <= after else (self.numbers[-1], {})

    def gauges(self):
        return {"pid/store": os.getpid(), "rows": len(self.numbers)}

    def state_dict(self):
        return {"numbers": list(self.numbers)}

    def load_state_dict(self, state):
        self.numbers = list(state["numbers"])


class Producer:
    """Passes 1, 2, 3, ... to a store: by `send`, by `call` or by `both`, which checks their order."""

    def __init__(self, store, mode="send"):
        self.store, self.mode, self.sent = store, mode, 0

    def step(self):
        self.sent += 1
        if self.mode == "send":
            send(self.store.add, self.sent)
        elif self.mode == "call":
            self.store.check(self.sent)
        elif self.mode == "both":
            earlier = call_async(self.store.count)
            send(self.store.add, self.sent)
            assert self.store.count() == self.sent
            # On the same host the call is made when its result is requested, else before the send.
            assert earlier.result() in (self.sent - 1, self.sent)
        return {"count/env_steps": 1, "count/updates": 1}

    def gauges(self):
        return {"pid/producer": os.getpid()}

    def state_dict(self):
        return {"sent": self.sent}

    def load_state_dict(self, state):
        self.sent = state["sent"]


class Consumer:
    """Reads the newest number of a store with two requests in flight; checks that replies are in order."""

    def __init__(self, store):
        self.prefetch = Prefetch(store.latest, depth=2)
        self.received = []

    def step(self):
        self.prefetch.fill(0)
        reply = self.prefetch.poll()
        self.prefetch.fill(0)
        if reply is None:
            return None
        self.received.append(reply[0])
        assert self.received == sorted(self.received)
        return {"count/updates": 1}


class BlobSender:
    """Sends blobs of some bytes as fast as it can."""

    def __init__(self, store, size):
        self.store, self.blob = store, b"x" * size

    def step(self):
        send(self.store.add_blob, self.blob)
        return {"count/env_steps": 1}


class PeerInspector:
    """Reports whether its peer is the role itself and not a stub."""

    def __init__(self, peer):
        self.peer = peer

    def step(self):
        return {"count/env_steps": 1, "same_host": float(isinstance(self.peer, NumberStore))}


class Inference:
    """Computes an action per row; counts calls and rows."""

    def __init__(self):
        self.calls, self.rows = 0, 0

    @batched
    def act(self, ids, obs):
        self.calls += 1
        self.rows += len(ids)
        return {"action": obs["x"] * 2 + ids[:, None]}

    def gauges(self):
        return {"calls": self.calls, "rows": self.rows}


class Runner:
    """Requests actions for its rows and checks that they belong to its rows."""

    def __init__(self, inference, first, rows=3):
        import numpy

        self.inference, self.ids = inference, numpy.arange(first, first + rows)
        self.obs = {"x": numpy.random.default_rng(first).normal(size=(rows, 2)).astype("float32")}

    def step(self):
        action = self.inference.act(self.ids, self.obs)["action"]
        assert (action == self.obs["x"] * 2 + self.ids[:, None]).all()
        return {"count/env_steps": len(self.ids)}
