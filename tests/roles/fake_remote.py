"""A method of a role on another host, whose replies arrive when the test delivers them."""

from collections import deque

from troop.core.remote import RemoteCallable


class FakeRemote(RemoteCallable):
    """Records one-way messages and requests; `compute(*args)`, called at the request, is the reply."""

    def __init__(self, compute=lambda *args: None):
        self.compute, self.sent, self.requests, self.undelivered = compute, [], [], deque()

    def __call__(self, *args):
        raise AssertionError("the caller must not block")

    def send(self, *args):
        self.sent.append(args)

    def call_async(self, *args):
        self.requests.append(args)
        self.undelivered.append(FakeReply(self.compute(*args)))
        return self.undelivered[-1]

    def deliver(self, *values):
        """Let the oldest reply arrive, with this value instead of the computed one if it is given."""
        self.undelivered.popleft().arrive(*values)


class FakeReply:
    def __init__(self, value):
        self.value, self.arrived = value, False

    def arrive(self, *values):
        self.arrived = True
        if values:
            (self.value,) = values

    def ready(self):
        return self.arrived

    def result(self):
        assert self.arrived
        return self.value
