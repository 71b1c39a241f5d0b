"""Both ends of an edge in one process: order, bounds, replacement."""

import os

import pytest
import torch

from troop.engines.rpc.batching import NotJoinable, join, rows, split
from troop.engines.rpc.client import Client
from troop.engines.rpc.codec import call_prefix
from troop.engines.rpc.connection import LARGEST, Connection, socket_pair
from troop.engines.rpc.server import ServerConnection
from troop.engines.rpc.shared_memory import SMALLEST, FlowCounters, SlotPool, create_memfd


class Never:
    """A waiter that may not have to wait."""

    def wait(self, edge, done, why, full=False):
        raise TimeoutError(why)


def connected(client, serving):
    ends, counters = socket_pair(), create_memfd(FlowCounters.SIZE)
    client.attach(Connection(ends[0]), os.dup(counters))
    serving.attach(Connection(ends[1]), counters)


@pytest.fixture
def edge():
    client, serving = Client("server", Never(), 1 << 20), ServerConnection("asker")
    connected(client, serving)
    return client, serving


def read(serving, count=None):
    serving.read_incoming(drain=True)
    messages = [serving.inbox.popleft() for _ in range(len(serving.inbox) if count is None else count)]
    return [serving.decode(message)[2][0] for message in messages]


def test_letters_of_all_sizes_come_in_order(edge):
    client, serving = edge
    sizes = [1, 10, 100_000, 5, 300_000, 40_000]
    for size in sizes:
        client.send("node", "add", (torch.zeros(size, dtype=torch.uint8),), {})
    assert [len(came) for came in read(serving)] == sizes


def test_a_mailbox_is_bounded_in_bytes_and_free_again_once_read(edge):
    client, serving = edge
    big = torch.zeros(600_000, dtype=torch.uint8)
    client.send("node", "add", (big,), {})
    with pytest.raises(TimeoutError, match="room in the mailbox of node"):
        client.send("node", "add", (big,), {})
    read(serving)
    client.send(
        "node", "add", (torch.zeros(5_000_000, dtype=torch.uint8),), {}
    )  # an empty one takes any letter
    assert [len(came) for came in read(serving)] == [5_000_000]


def test_slots_are_used_again(edge):
    client, serving = edge
    for _ in range(50):
        client.send("node", "add", (torch.zeros(200_000),), {})
        read(serving)
    assert client.slots._made <= 2


def test_what_a_dead_server_did_not_handle_goes_to_the_next_in_order(edge):
    client, serving = edge
    for i in range(5):
        client.send("node", "add", (i,), {})
    reply = client.call("node", "count", (5,), {})
    client.send("node", "add", (torch.full((100_000,), 6, dtype=torch.uint8),), {})
    assert read(serving, 2) == [0, 1]
    replaced = ServerConnection("asker")
    connected(client, replaced)
    came = read(replaced)
    assert came[:4] == [2, 3, 4, 5] and torch.equal(came[4], torch.full((100_000,), 6, dtype=torch.uint8))
    assert not reply.done


def test_a_question_that_was_read_but_not_answered_is_asked_again(edge):
    client, serving = edge
    client.call("node", "count", (1,), {})
    client.send("node", "add", (2,), {})
    assert read(serving) == [1, 2]
    replaced = ServerConnection("asker")
    connected(client, replaced)
    assert read(replaced) == [1]


def test_what_a_dead_asker_told_is_kept_and_its_questions_are_dropped(edge):
    client, serving = edge
    client.send("node", "add", (torch.ones(100_000, dtype=torch.uint8),), {})
    client.call("node", "count", (2,), {})
    client.connection.close()
    connected(Client("server", Never(), 1 << 20), serving)
    came = read(serving)
    assert len(came) == 1 and torch.equal(came[0], torch.ones(100_000, dtype=torch.uint8))


def test_slots_are_forgotten_when_too_many_are_free():
    slots = SlotPool(max_free_bytes=2 * SMALLEST)
    taken = [slots.take(SMALLEST) for _ in range(6)]
    for slot in taken:
        slot.busy = False
    slots.take(4 * SMALLEST)
    assert len(slots.retired) == 4


def test_a_line_holds_what_the_kernel_does_not_take():
    ours, theirs = (Connection(end) for end in socket_pair())
    for i in range(200):
        ours.send(bytes([i]) * 50_000)
    assert ours.backlogged
    got = []
    while len(got) < 200:
        ours.flush()
        while (came := theirs.receive()) is not None:
            got.append((came[0][0], len(came[0])))
    assert got == [(i, 50_000) for i in range(200)]
    with pytest.raises(ValueError, match="too long"):
        ours.send(bytes(LARGEST + 1))
    theirs.close()
    ours.send(b"x")
    assert not ours.open and ours.receive() is None


def test_rows_of_several_callers_are_joined_and_split():
    calls = [({"x": torch.full((n, 2), float(n))}, torch.arange(n), 5) for n in (2, 3, 1)]
    counts = [rows(call) for call in calls]
    assert counts == [2, 3, 1]
    joined = join(calls, counts)
    assert joined[0]["x"].shape == (6, 2) and joined[2] == 5
    parts = split({"a": joined[0]["x"], "b": None}, counts)
    assert all(
        torch.equal(part["a"], call[0]["x"]) and part["b"] is None
        for part, call in zip(parts, calls, strict=True)
    )


@pytest.mark.parametrize(
    "other",
    [(torch.ones(2, 3), 1), (torch.ones(2, 2), 2), (torch.ones(2, 2).double(), 1), (torch.tensor(1.0), 1)],
)
def test_calls_that_differ_in_more_than_rows_are_not_joined(other):
    with pytest.raises(NotJoinable):
        join([(torch.ones(2, 2), 1), other], [2, 2])


def test_an_answer_without_a_row_for_each_asked_is_an_error():
    with pytest.raises(ValueError, match="3 rows"):
        split(torch.ones(2), [2, 1])


def test_what_was_told_and_opened_is_not_told_to_the_next_server_even_if_it_was_lent(edge):
    client, serving = edge
    serving.zero_copy_prefixes = (call_prefix("node", "add"),)
    for i in range(3):
        client.send("node", "add", (torch.full((100_000,), i, dtype=torch.uint8),), {})
    serving.read_incoming(drain=True)
    serving.decode(serving.inbox.popleft())  # it dies over it, before `done`
    replaced = ServerConnection("asker")
    connected(client, replaced)
    assert [int(came[0]) for came in read(replaced)] == [1, 2]
