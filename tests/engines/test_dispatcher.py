"""A desk in this process: answers shared by many, calls joined, roles out of reach."""

import os
from types import SimpleNamespace

import pytest
import torch

from troop.core.remote import batched, readonly, zero_copy
from troop.engines.role_times import RoleTimes
from troop.engines.rpc.client import Client
from troop.engines.rpc.connection import Connection, socket_pair
from troop.engines.rpc.dispatcher import Dispatcher
from troop.engines.rpc.server import ReplySlots, ServerConnection
from troop.engines.rpc.shared_memory import FlowCounters, create_memfd


class Weights:
    """Newest wins."""

    def __init__(self):
        self.version, self.state = 0, {}

    def publish(self, state):
        """Take new ones."""
        self.version, self.state = self.version + 1, state

    @readonly
    def latest(self, after):
        """The newest, if newer."""
        return None if self.version <= after else (self.version, self.state)


class Adder:
    """Adds one to rows."""

    def __init__(self):
        self.calls = []

    @batched
    def act(self, ids, faults):
        """Row-wise; `faults` is no array."""
        self.calls.append(len(ids))
        return ids + 1

    def secret(self):
        """Callable."""


class Served:
    """Some askers of one host, whose desk serves whenever one of them waits."""

    def __init__(self, role, clients=3):
        self.edges = [ServerConnection(f"asker{i}") for i in range(clients)]
        self.client = [Client("host", self, 1 << 24) for _ in range(clients)]
        for who in range(clients):
            self._connect(who)
        host = SimpleNamespace(roles={"role": role}, active=[])
        replies = ReplySlots(1 << 24, self.edges)
        self.dispatcher = Dispatcher(host, self.edges, replies, RoleTimes(["role"]), lambda node, what: None)

    def _connect(self, who):
        ends, counters = socket_pair(), create_memfd(FlowCounters.SIZE)
        self.client[who].attach(Connection(ends[0]), os.dup(counters))
        self.edges[who].attach(Connection(ends[1]), counters)

    def renew(self, who):
        """Another in the place of an asker."""
        self.client[who] = Client("host", self, 1 << 24)
        self._connect(who)

    def wait(self, edge, done, why, full=False):
        """Serve until it is done."""
        while not done():
            self.serve()
            edge.read_incoming()

    def serve(self):
        """Everything that came."""
        self.dispatcher.read_incoming()
        self.dispatcher.serve()

    def call(self, who, method, *args):
        """A question under way."""
        return self.client[who].call("role", method, args, {})


def state(value):
    return {"w": torch.full((50_000,), float(value)), "b": torch.full((7,), float(value))}


def test_one_copy_of_an_answer_serves_all_and_none_is_torn_by_the_next():
    served = Served(Weights())
    served.client[0].send("role", "publish", (state(1),), {})
    first = [served.call(who, "latest", 0) for who in range(3)]
    served.serve()
    made = served.dispatcher.replies.slots._made
    assert made == 1
    for value in range(2, 6):  # nobody has taken the first answer yet
        served.client[0].send("role", "publish", (state(value),), {})
        assert served.call(0, "latest", value - 1).result()[0] == value
    for answer in first[1:]:
        version, weights = answer.result()
        assert version == 1 and weights["w"].eq(1.0).all() and weights["b"].eq(1.0).all()
    assert served.call(1, "latest", 5).result() is None
    for value in range(6, 30):
        served.client[0].send("role", "publish", (state(value),), {})
        for who in range(3):
            assert served.call(who, "latest", value - 1).result()[1]["w"].eq(float(value)).all()
    assert served.dispatcher.replies.slots._made <= 4  # used again and again


def test_waiting_calls_are_joined_and_what_differs_is_called_alone():
    role = Adder()
    served = Served(role)
    replies = [served.call(who, "act", torch.arange(who + 1) * 10, 0) for who in range(3)]
    assert [reply.result().tolist() for reply in replies] == [[1], [1, 11], [1, 11, 21]]
    assert role.calls == [6]
    replies = [served.call(who, "act", torch.arange(2), who) for who in range(2)]
    assert [reply.result().tolist() for reply in replies] == [[1, 2], [1, 2]] and role.calls == [6, 2, 2]


def test_another_letter_behind_a_joined_call_keeps_its_turn():
    role = Adder()
    served = Served(role)
    first = served.call(0, "act", torch.arange(1), 0)
    second = served.call(1, "secret")
    third = served.call(1, "act", torch.arange(4), 0)
    assert (
        second.result() is None and third.result().tolist() == [1, 2, 3, 4] and first.result().tolist() == [1]
    )


def test_what_is_private_or_missing_cannot_be_called():
    for method in ("_hidden", "nothing"):
        served = Served(Adder())
        with pytest.raises(AttributeError, match=method):
            served.call(0, method).result()


class Ring:
    """Copies what it is lent, and what it is given keeps."""

    def __init__(self):
        self.ring, self.kept, self.seen = torch.zeros(100_000), [], None

    @zero_copy
    def add(self, rows):
        """Copy."""
        self.seen = rows
        self.ring.copy_(rows)

    def keep(self, rows):
        """Hold on."""
        self.kept.append(rows)


def test_memory_is_lent_to_who_says_that_it_borrows_and_copied_for_others():
    role = Ring()
    served = Served(role, clients=1)
    (client,) = served.client
    for i in range(3):
        client.send("role", "add", (torch.full((100_000,), float(i)),), {})
        client.send("role", "keep", (torch.full((100_000,), 10.0 + i),), {})
    served.serve()
    assert role.ring[0] == 2 and [float(x[-1]) for x in role.kept] == [10, 11, 12]
    for _ in range(6):  # in the same memory
        client.send("role", "add", (torch.full((100_000,), 7.0),), {})
        served.serve()
    assert role.ring[0] == 7 and [float(x[-1]) for x in role.kept] == [10, 11, 12]
    assert len({slot.number for slot in client.slots._slots}) <= 6


def test_what_is_lent_is_not_used_again_before_the_method_returns():
    messages = []

    class Reads:
        @zero_copy
        def add(self, rows):
            client.send("role", "other", (torch.full((100_000,), 5.0),), {})
            messages.append(rows.clone())

        def other(self, rows):
            """Nothing."""

    served = Served(Reads(), clients=1)
    (client,) = served.client
    client.send("role", "add", (torch.full((100_000,), 1.0),), {})
    served.serve()
    assert bool((messages[0] == 1).all())


class Both:
    """A method that is row-wise and keeps nothing."""

    @batched
    @zero_copy
    def act(self, rows):
        """Row-wise."""
        return rows + 1


def test_what_was_lent_to_a_method_that_is_joined_is_given_back():
    served = Served(Both(), clients=2)
    for _ in range(5):
        asked = [served.call(who, "act", torch.full((60_000,), float(who))) for who in (0, 1)]
        assert [float(reply.result()[0]) for reply in asked] == [1.0, 2.0]
    for client in served.client:
        assert client._counters.bytes() == 0 and len(client.slots._slots) <= 2


class Waits:
    """While it borrows, whoever lent is replaced."""

    def __init__(self):
        self.replace, self.seen = None, []

    @zero_copy
    def add(self, rows):
        """Read what may be another's by now."""
        if self.replace is not None:
            self.replace()
            self.replace = None
        self.seen.append(float(rows[0]))

    @zero_copy
    def many(self, rows):
        """Look at the last."""
        self.last = float(list(rows.values())[-1][0])


def test_a_lender_that_was_replaced_leaves_the_ledger_of_the_next_alone():
    role = Waits()
    served = Served(role, clients=1)
    for i in range(5):
        served.client[0].send("role", "add", (torch.full((60_000,), float(i)),), {})
        served.serve()
    served.client[0].send("role", "add", (torch.full((60_000,), 5.0),), {})
    role.replace = lambda: served.renew(0)
    served.serve()
    for i in (6, 7, 8):
        served.client[0].send("role", "add", (torch.full((60_000,), float(i)),), {})
    served.serve()
    assert role.seen == [float(i) for i in range(9)]


class Looks:
    """Remembers what it was lent, which it must not, and what it read."""

    def __init__(self):
        self.lent, self.read = [], []

    @zero_copy
    def add(self, number, rows):
        """Look at both."""
        self.lent.append(rows["x"])
        self.read.append((number, float(rows["x"].flatten()[0]), rows["x"].shape, rows["x"].dtype))


def test_chunks_of_one_shape_are_the_same_views_with_other_numbers():
    role = Looks()
    served = Served(role, clients=1)
    (client,) = served.client
    kinds = [torch.zeros(300, 200), torch.zeros(200, 300), torch.zeros(60_000, dtype=torch.int32)]
    for i in range(12):
        client.send("role", "add", (i, {"x": kinds[i % 3] + i}), {})
        served.serve()
    assert role.read == [(i, float(i), kinds[i % 3].shape, kinds[i % 3].dtype) for i in range(12)]
    assert len({id(rows) for rows in role.lent}) <= 3 * len(client.slots._slots) < 12


def test_views_of_a_slot_go_with_it():
    role = Looks()
    served = Served(role, clients=1)
    (client,), (edge,) = served.client, served.edges
    client.send("role", "add", (1, {"x": torch.ones(60_000)}), {})
    served.serve()
    assert len(edge.mapped._views) == 1
    for slot in list(client.slots._slots):
        edge.mapped.unmap(slot.number)
    assert not edge.mapped._views and not edge.mapped._blocks


def test_views_of_a_letter_too_long_to_be_planned_once_are_not_kept():
    role = Waits()
    served = Served(role, clients=1)
    many = {f"a name that is quite long {i}": torch.full((40,), float(i)) for i in range(600)}
    for _ in range(3):
        served.client[0].send("role", "add", (torch.full((60_000,), 1.0),), {})
        served.client[0].send("role", "many", (many,), {})
        served.serve()
    assert role.last == 599.0 and len(served.edges[0].mapped._views) == 1
