"""Dispatcher with in-process clients: shared replies, batched calls, zero-copy arguments, private methods."""

import math
import os
import random
from types import SimpleNamespace

import pytest
import torch

from troop.core.remote import BatchLimits, batched, readonly, zero_copy
from troop.engines.role_times import RoleTimes
from troop.engines.rpc import dispatcher as dispatcher_module
from troop.engines.rpc.client import Client
from troop.engines.rpc.connection import Connection, socket_pair
from troop.engines.rpc.dispatcher import Dispatcher
from troop.engines.rpc.server import ReplySlots, ServerConnection
from troop.engines.rpc.shared_memory import FlowCounters, create_memfd


class PublishedWeights:
    """Holds the newest weights."""

    def __init__(self):
        self.version, self.weights = 0, {}

    def publish(self, weights):
        self.version, self.weights = self.version + 1, weights

    @readonly
    def latest(self, after):
        return None if self.version <= after else (self.version, self.weights)


class Adder:
    """Adds one to rows; records the number of rows of each call."""

    def __init__(self):
        self.calls = []

    @batched
    def act(self, ids, faults):
        self.calls.append(len(ids))
        return ids + 1

    def ping(self):
        pass


class Server:
    """A host with one role and some clients; it serves whenever one of them blocks."""

    def __init__(self, role, clients=3):
        self.edges = [ServerConnection(f"client{i}") for i in range(clients)]
        self.clients = [Client("host", self, 1 << 24) for _ in range(clients)]
        for i in range(clients):
            self._connect(i)
        host = SimpleNamespace(roles={"role": role}, active=[])
        replies = ReplySlots(1 << 24, self.edges)
        self.dispatcher = Dispatcher(host, self.edges, replies, RoleTimes(["role"]), lambda *_: None)

    def _connect(self, i):
        ends, counters = socket_pair(), create_memfd(FlowCounters.SIZE)
        self.clients[i].attach(Connection(ends[0]), os.dup(counters))
        self.edges[i].attach(Connection(ends[1]), counters)

    def replace_client(self, i):
        self.clients[i] = Client("host", self, 1 << 24)
        self._connect(i)

    def wait(self, client, done, reason, blocked=False):
        while not done():
            self.serve()
            client.read_incoming()

    def serve(self):
        self.dispatcher.read_incoming()
        self.dispatcher.serve()

    def call(self, i, method, *args):
        return self.clients[i].call("role", method, args, {})

    def send(self, i, method, *args):
        self.clients[i].send("role", method, args, {})


def weights(value):
    return {"w": torch.full((50_000,), float(value)), "b": torch.full((7,), float(value))}


def test_clients_share_one_copy_of_a_reply_and_later_replies_do_not_overwrite_it():
    server = Server(PublishedWeights())
    server.send(0, "publish", weights(1))
    first = [server.call(i, "latest", 0) for i in range(3)]
    server.serve()
    assert server.dispatcher.replies.slots._created == 1
    for value in range(2, 6):  # clients 1 and 2 have not read the first reply yet
        server.send(0, "publish", weights(value))
        assert server.call(0, "latest", value - 1).result()[0] == value
    for reply in first[1:]:
        version, received = reply.result()
        assert version == 1 and received["w"].eq(1.0).all() and received["b"].eq(1.0).all()
    assert server.call(1, "latest", 5).result() is None
    for value in range(6, 30):
        server.send(0, "publish", weights(value))
        for i in range(3):
            assert server.call(i, "latest", value - 1).result()[1]["w"].eq(float(value)).all()
    assert server.dispatcher.replies.slots._created <= 4  # slots are reused


def test_waiting_calls_are_joined_unless_other_arguments_differ():
    role = Adder()
    server = Server(role)
    replies = [server.call(i, "act", torch.arange(i + 1) * 10, 0) for i in range(3)]
    assert [reply.result().tolist() for reply in replies] == [[1], [1, 11], [1, 11, 21]]
    assert role.calls == [6]
    replies = [server.call(i, "act", torch.arange(2), i) for i in range(2)]
    assert [reply.result().tolist() for reply in replies] == [[1, 2], [1, 2]] and role.calls == [6, 2, 2]


def limited(**limits):
    role = Adder()
    role.batch_limits = BatchLimits(**limits)
    return role


def test_batch_has_at_most_the_maximum_of_rows_unless_one_call_has_more():
    role = limited(max_rows=5)
    server = Server(role, clients=4)
    replies = [server.call(i, "act", torch.arange(rows), 0) for i, rows in enumerate((2, 3, 1, 7))]
    assert [reply.result().tolist() for reply in replies] == [list(range(1, n + 1)) for n in (2, 3, 1, 7)]
    assert role.calls == [5, 1, 7]


def test_few_rows_wait_for_the_deadline_and_full_batches_do_not(monkeypatch):
    now = 0.0
    monkeypatch.setattr(dispatcher_module.time, "perf_counter", lambda: now)
    role = limited(max_rows=4, deadline_s=0.001)
    server = Server(role)
    reply = server.call(0, "act", torch.arange(2), 0)
    server.serve()
    assert not reply.ready() and role.calls == [] and server.dispatcher.due_in() == pytest.approx(0.001)
    now = 0.0011
    assert server.dispatcher.due_in() == 0 and server.dispatcher.serve()
    assert reply.ready() and role.calls == [2] and math.isinf(server.dispatcher.due_in())
    replies = [server.call(i, "act", torch.arange(2), 0) for i in (0, 1)]
    server.serve()
    assert all(reply.ready() for reply in replies) and role.calls == [2, 4]


def test_strict_batches_block_while_rows_are_missing():
    role = limited(max_rows=3, deadline_s=math.inf)
    server = Server(role)
    replies = [server.call(i, "act", torch.arange(1), 0) for i in (0, 1)]
    for _ in range(3):
        server.serve()
    assert not any(reply.ready() for reply in replies) and role.calls == []
    assert server.call(2, "act", torch.arange(1), 0).result().tolist() == [1]
    assert all(reply.ready() for reply in replies) and role.calls == [3]


def test_waiting_call_of_a_replaced_client_is_dropped_and_the_new_client_gets_its_own_reply():
    role = limited(max_rows=4, deadline_s=math.inf)
    server = Server(role)
    server.call(0, "act", torch.full((2,), 70), 0)
    server.serve()
    server.replace_client(0)
    replies = [server.call(i, "act", torch.full((2,), i), 0) for i in (0, 1)]
    server.serve()
    assert [reply.result().tolist() for reply in replies] == [[1, 1], [2, 2]]
    assert sum(role.calls) == 4


def test_other_call_of_a_waiting_client_is_made_after_the_waiting_one():
    role = limited(max_rows=3, deadline_s=math.inf)
    server = Server(role)
    waiting = server.call(0, "act", torch.arange(1), 0)
    assert server.call(0, "ping").result() is None
    assert waiting.ready() and role.calls == [1]


@pytest.mark.parametrize("deadline_s", [0.0, 0.0005])
def test_each_of_64_callers_gets_the_reply_to_its_own_call(deadline_s):
    """Callers send at random times, up to two calls each; the server serves at random times."""
    rng, role = random.Random(0), limited(max_rows=40, deadline_s=deadline_s)
    server = Server(role, clients=64)
    pending, answered = {i: [] for i in range(64)}, 0
    for number in range(3000):
        i = rng.randrange(64)
        if len(pending[i]) < 2:
            rows = torch.full((rng.randint(1, 5),), 1000 * number + i)
            pending[i].append((rows, server.call(i, "act", rows, 0)))
        if rng.random() < 0.1:
            server.serve()
        while pending[i] and rng.random() < 0.5 and pending[i][0][1].ready():
            rows, reply = pending[i].pop(0)
            assert torch.equal(reply.result(), rows + 1)
            answered += 1
    for i in range(64):
        for rows, reply in pending[i]:
            assert torch.equal(reply.result(), rows + 1)
    assert answered > 500 and max(role.calls) > 20 and max(role.calls) <= 40


def test_calls_behind_a_joined_call_keep_their_order():
    server = Server(Adder())
    first = server.call(0, "act", torch.arange(1), 0)
    second = server.call(1, "ping")
    third = server.call(1, "act", torch.arange(4), 0)
    assert second.result() is None
    assert third.result().tolist() == [1, 2, 3, 4] and first.result().tolist() == [1]


@pytest.mark.reliability("P8")
def test_private_and_missing_methods_cannot_be_called():
    for method in ("_hidden", "nothing"):
        server = Server(Adder())
        with pytest.raises(AttributeError, match=method):
            server.call(0, method).result()


class CopiesOrKeeps:
    """`add` copies its zero-copy argument, `keep` keeps a reference to its argument."""

    def __init__(self):
        self.newest, self.references = torch.zeros(100_000), []

    @zero_copy
    def add(self, rows):
        self.newest.copy_(rows)

    def keep(self, rows):
        self.references.append(rows)


def test_zero_copy_methods_get_views_and_other_methods_get_copies():
    role = CopiesOrKeeps()
    server = Server(role, clients=1)
    for i in range(3):
        server.send(0, "add", torch.full((100_000,), float(i)))
        server.send(0, "keep", torch.full((100_000,), 10.0 + i))
    server.serve()
    assert role.newest[0] == 2 and [float(x[-1]) for x in role.references] == [10, 11, 12]
    for _ in range(6):  # reuses the slots
        server.send(0, "add", torch.full((100_000,), 7.0))
        server.serve()
    assert role.newest[0] == 7 and [float(x[-1]) for x in role.references] == [10, 11, 12]
    assert len({slot.number for slot in server.clients[0].slots._slots}) <= 6


def test_slot_of_a_zero_copy_argument_is_not_reused_before_the_method_returns():
    received = []

    class SendsWhileReading:
        @zero_copy
        def add(self, rows):
            server.send(0, "other", torch.full((100_000,), 5.0))
            received.append(rows.clone())

        def other(self, rows):
            pass

    server = Server(SendsWhileReading(), clients=1)
    server.send(0, "add", torch.full((100_000,), 1.0))
    server.serve()
    assert bool((received[0] == 1).all())


class BatchedZeroCopy:
    """A method that is both batched and zero-copy."""

    @batched
    @zero_copy
    def act(self, rows):
        return rows + 1


def test_slots_of_joined_zero_copy_calls_are_released():
    server = Server(BatchedZeroCopy(), clients=2)
    for _ in range(5):
        replies = [server.call(i, "act", torch.full((60_000,), float(i))) for i in (0, 1)]
        assert [float(reply.result()[0]) for reply in replies] == [1.0, 2.0]
    for client in server.clients:
        assert client._counters.unhandled_bytes() == 0 and len(client.slots._slots) <= 2


class ReplacesClient:
    """Calls `replace`, once, while it reads a zero-copy argument."""

    def __init__(self):
        self.replace, self.first_values = None, []

    @zero_copy
    def add(self, rows):
        if self.replace is not None:
            self.replace()
            self.replace = None
        self.first_values.append(float(rows[0]))

    @zero_copy
    def add_many(self, arrays):
        self.last_value = float(list(arrays.values())[-1][0])


def test_releasing_a_view_of_a_replaced_client_does_not_change_the_counters_of_its_replacement():
    role = ReplacesClient()
    server = Server(role, clients=1)
    for i in range(5):
        server.send(0, "add", torch.full((60_000,), float(i)))
        server.serve()
    server.send(0, "add", torch.full((60_000,), 5.0))
    role.replace = lambda: server.replace_client(0)
    server.serve()
    for i in (6, 7, 8):
        server.send(0, "add", torch.full((60_000,), float(i)))
    server.serve()
    assert role.first_values == [float(i) for i in range(9)]


class RecordsViews:
    """Records the zero-copy tensors themselves and what it read from them."""

    def __init__(self):
        self.views, self.readings = [], []

    @zero_copy
    def add(self, number, rows):
        x = rows["x"]
        self.views.append(x)
        self.readings.append((number, float(x.flatten()[0]), x.shape, x.dtype))


def test_messages_of_one_shape_reuse_cached_views():
    role = RecordsViews()
    server = Server(role, clients=1)
    kinds = [torch.zeros(300, 200), torch.zeros(200, 300), torch.zeros(60_000, dtype=torch.int32)]
    for i in range(12):
        server.send(0, "add", i, {"x": kinds[i % 3] + i})
        server.serve()
    assert role.readings == [(i, float(i), kinds[i % 3].shape, kinds[i % 3].dtype) for i in range(12)]
    assert len({id(view) for view in role.views}) <= 3 * len(server.clients[0].slots._slots) < 12


def test_unmapping_a_slot_drops_its_views():
    server = Server(RecordsViews(), clients=1)
    (client,), (edge,) = server.clients, server.edges
    server.send(0, "add", 1, {"x": torch.ones(60_000)})
    server.serve()
    assert len(edge.mapped_slots._views) == 1
    for slot in list(client.slots._slots):
        edge.mapped_slots.unmap(slot.number)
    assert not edge.mapped_slots._views and not edge.mapped_slots._blocks


def test_views_of_a_message_with_an_uncached_plan_are_not_cached():
    role = ReplacesClient()
    server = Server(role, clients=1)
    many = {f"a name that is quite long {i}": torch.full((40,), float(i)) for i in range(600)}
    for _ in range(3):
        server.send(0, "add", torch.full((60_000,), 1.0))
        server.send(0, "add_many", many)
        server.serve()
    assert role.last_value == 599.0 and len(server.edges[0].mapped_slots._views) == 1
