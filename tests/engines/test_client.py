"""Both ends of an edge in one process: order, flow control, replacement of either end; batching of rows."""

import os

import numpy as np
import pytest
import torch

from troop.engines.rpc.batching import NotJoinable, join_rows, row_count, split_rows
from troop.engines.rpc.client import Client
from troop.engines.rpc.codec import call_prefix
from troop.engines.rpc.connection import MAX_MESSAGE_BYTES, Connection, socket_pair
from troop.engines.rpc.server import ServerConnection
from troop.engines.rpc.shared_memory import (
    MAX_BUSY_SLOTS,
    MAX_FREE_SLOTS,
    MIN_SLOT_BYTES,
    FlowCounters,
    SlotPool,
    create_memfd,
)
from troop.engines.rpc.waiting_calls import invoke_joined


class FailingWaiter:
    """Raises instead of blocking."""

    def wait(self, client, done, reason, blocked=False):
        raise TimeoutError(reason)


def connect(client, server):
    ends, counters = socket_pair(), create_memfd(FlowCounters.SIZE)
    client.attach(Connection(ends[0]), os.dup(counters))
    server.attach(Connection(ends[1]), counters)


@pytest.fixture
def edge():
    client, server = Client("server", FailingWaiter(), 1 << 20), ServerConnection("client")
    connect(client, server)
    return client, server


def decode_all(server, count=None):
    """Decode the first argument of the next messages, by default of all."""
    server.read_incoming(drain=True)
    messages = [server.inbox.popleft() for _ in range(len(server.inbox) if count is None else count)]
    return [server.decode(message)[2][0] for message in messages]


def test_messages_of_all_sizes_arrive_in_order(edge):
    client, server = edge
    sizes = [1, 10, 100_000, 5, 300_000, 40_000]
    for size in sizes:
        client.send("node", "add", (torch.zeros(size, dtype=torch.uint8),), {})
    assert [len(tensor) for tensor in decode_all(server)] == sizes


@pytest.mark.parametrize("rows", [3, 5_000])
def test_numpy_arrays_arrive_in_the_message_and_in_a_slot(edge, rows):
    client, server = edge
    read_only = np.arange(rows, dtype=np.float32)
    read_only.flags.writeable = False
    columns = np.arange(2 * rows, dtype=np.int64).reshape(rows, 2)
    arrays = [read_only, columns[:, 1], columns[::-1] > 2, np.array(3.0), np.zeros((0, 4), np.uint8)]
    client.send("node", "add", (arrays,), {})
    (received,) = decode_all(server)
    for one, other in zip(arrays, received, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape and np.array_equal(one, other)


def test_mailbox_is_bounded_in_bytes_and_empty_again_once_handled(edge):
    client, server = edge
    big = torch.zeros(600_000, dtype=torch.uint8)
    client.send("node", "add", (big,), {})
    with pytest.raises(TimeoutError, match="space in the mailbox of node"):
        client.send("node", "add", (big,), {})
    decode_all(server)
    # An empty mailbox accepts a message of any size.
    client.send("node", "add", (torch.zeros(5_000_000, dtype=torch.uint8),), {})
    assert [len(tensor) for tensor in decode_all(server)] == [5_000_000]


def test_slots_are_reused(edge):
    client, server = edge
    for _ in range(50):
        client.send("node", "add", (torch.zeros(200_000),), {})
        decode_all(server)
    assert client.slots._created <= 2


def test_open_files_of_a_sender_are_bounded_and_given_back():
    """Small arrays in slots of 64 kB would otherwise open thousands of files before the mailbox is full."""
    client, server = Client("server", FailingWaiter(), 1 << 30), ServerConnection("client")
    connect(client, server)
    sent = 0
    with pytest.raises(TimeoutError, match="space in the mailbox of node"):
        while sent < 10_000:
            client.send("node", "add", (torch.zeros(10_000, dtype=torch.uint8),), {})
            sent += 1
            server.read_incoming(drain=True)  # into its inbox, so that the socket is not what blocks
    assert sent == MAX_BUSY_SLOTS == len(client.slots._slots)
    decode_all(server)
    client.send("node", "add", (torch.zeros(100_000, dtype=torch.uint8),), {})
    assert len(client.slots._slots) <= MAX_FREE_SLOTS + 2


@pytest.mark.reliability("P1")
def test_replaced_server_receives_unhandled_messages_in_order(edge):
    client, server = edge
    for i in range(5):
        client.send("node", "add", (i,), {})
    reply = client.call("node", "count", (5,), {})
    client.send("node", "add", (torch.full((100_000,), 6, dtype=torch.uint8),), {})
    assert decode_all(server, 2) == [0, 1]
    replacement = ServerConnection("client")
    connect(client, replacement)
    values = decode_all(replacement)
    assert values[:4] == [2, 3, 4, 5]
    assert torch.equal(values[4], torch.full((100_000,), 6, dtype=torch.uint8))
    assert not reply.done


@pytest.mark.reliability("P1")
def test_replaced_server_receives_handled_calls_without_reply_again(edge):
    client, server = edge
    client.call("node", "count", (1,), {})
    client.send("node", "add", (2,), {})
    assert decode_all(server) == [1, 2]
    replacement = ServerConnection("client")
    connect(client, replacement)
    assert decode_all(replacement) == [1]


@pytest.mark.reliability("P4")
def test_sends_of_a_replaced_client_are_handled_and_its_calls_are_dropped(edge):
    client, server = edge
    client.send("node", "add", (torch.ones(100_000, dtype=torch.uint8),), {})
    client.call("node", "count", (2,), {})
    client.connection.close()
    connect(Client("server", FailingWaiter(), 1 << 20), server)
    values = decode_all(server)
    assert len(values) == 1 and torch.equal(values[0], torch.ones(100_000, dtype=torch.uint8))


@pytest.mark.reliability("P1")
def test_replaced_server_does_not_receive_sends_that_were_decoded_even_as_views(edge):
    client, server = edge
    server.zero_copy_prefixes = (call_prefix("node", "add"),)
    for i in range(3):
        client.send("node", "add", (torch.full((100_000,), i, dtype=torch.uint8),), {})
    server.read_incoming(drain=True)
    server.decode(server.inbox.popleft())  # the server dies before `release`
    replacement = ServerConnection("client")
    connect(client, replacement)
    assert [int(tensor[0]) for tensor in decode_all(replacement)] == [1, 2]


def test_slots_are_retired_when_too_many_bytes_are_free():
    slots = SlotPool(max_free_bytes=2 * MIN_SLOT_BYTES)
    busy = [slots.acquire(MIN_SLOT_BYTES) for _ in range(6)]
    for slot in busy:
        slot.busy = False
    slots.acquire(4 * MIN_SLOT_BYTES)
    assert len(slots.retired) == 4


def test_connection_queues_messages_that_the_kernel_does_not_accept():
    sender, receiver = (Connection(end) for end in socket_pair())
    for i in range(200):
        sender.send(bytes([i]) * 50_000)
    assert sender.backlogged
    messages = []
    while len(messages) < 200:
        sender.flush()
        while (received := receiver.receive()) is not None:
            messages.append((received[0][0], len(received[0])))
    assert messages == [(i, 50_000) for i in range(200)]
    with pytest.raises(ValueError, match="is longer than"):
        sender.send(bytes(MAX_MESSAGE_BYTES + 1))
    receiver.close()
    sender.send(b"x")
    assert not sender.open and sender.receive() is None


def test_rows_of_several_calls_are_joined_and_split():
    calls = [({"x": torch.full((n, 2), float(n))}, torch.arange(n), 5) for n in (2, 3, 1)]
    counts = [row_count(call) for call in calls]
    assert counts == [2, 3, 1]
    joined = join_rows(calls, counts)
    assert joined[0]["x"].shape == (6, 2) and joined[2] == 5
    results = split_rows({"a": joined[0]["x"], "b": None}, counts)
    assert all(
        torch.equal(result["a"], call[0]["x"]) and result["b"] is None
        for result, call in zip(results, calls, strict=True)
    )


@pytest.mark.parametrize(
    "other",
    [(torch.ones(2, 3), 1), (torch.ones(2, 2), 2), (torch.ones(2, 2).double(), 1), (torch.tensor(1.0), 1)],
)
def test_calls_that_differ_in_more_than_rows_are_not_joined(other):
    with pytest.raises(NotJoinable):
        join_rows([(torch.ones(2, 2), 1), other], [2, 2])


def test_calls_are_joined_with_those_of_equal_layout():
    made = []

    def double(args):
        made.append(len(args[0]))
        return args[0] * 2

    ended = {"obs": torch.ones(2, 3)}
    calls = [(torch.full((2, 1), float(i)), ended if i in (1, 4) else None) for i in range(6)]
    calls.append((torch.full((2, 1), 6.0), [{}]))  # an argument that cannot be joined or hashed
    results = invoke_joined(double, calls)
    assert sorted(made) == [2, 4, 8]
    assert [float(result[0]) for result in results] == [2.0 * i for i in range(7)]


def test_result_without_one_row_per_requested_row_is_an_error():
    with pytest.raises(ValueError, match="3 rows"):
        split_rows(torch.ones(2), [2, 1])


def test_a_call_alone_is_made_as_it_is():
    assert invoke_joined(lambda args: args, [({"not": {"hashable"}},)]) == [({"not": {"hashable"}},)]
    assert invoke_joined(lambda args: args, []) == []
