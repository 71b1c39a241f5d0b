"""RayClient and RayServerConnection without Ray: late, repeated, reordered and stale messages."""

import asyncio
import functools
from concurrent.futures import Future
from types import SimpleNamespace

import numpy
import pytest
import torch

from troop.engines.ray.client import MAX_IN_FLIGHT, RETRY_S, RayClient
from troop.engines.ray.message import RayMessage, StaleGeneration, from_body, to_body
from troop.engines.ray.server import RayReplySender, RayServerConnection
from troop.engines.rpc.codec import pack
from troop.engines.rpc.message import CALL, SEND


def message(sequence, kind=SEND, value="x"):
    return RayMessage(sequence, kind, to_body(pack(value)))


def decode_all(edge):
    return [edge.decode(edge.inbox.popleft()) for _ in range(len(edge.inbox))]


def in_event_loop(test):
    """Run a coroutine test in an event loop, which every RayMessage needs."""

    @functools.wraps(test)
    def run():
        asyncio.run(test())

    return run


def test_body_round_trip_uses_one_numpy_array_and_returns_writable_tensors():
    value = {"x": torch.arange(6.0).reshape(2, 3), "y": numpy.arange(3), "z": (1, "a", None)}
    meta, block = to_body(pack(value))
    assert block.dtype == numpy.uint8
    block.flags.writeable = False  # as in Ray's object store
    decoded = from_body(meta, block)
    assert decoded["x"].equal(value["x"]) and (decoded["y"] == value["y"]).all()
    assert decoded["z"] == value["z"]
    decoded["x"] += 1
    assert from_body(*to_body(pack(None))) is None


@in_event_loop
async def test_server_delivers_each_message_once_in_the_order_of_sending():
    edge = RayServerConnection("client")
    for sequence in (2, 3, 1):
        edge.deliver(0, 1, message(sequence, value=sequence))
    assert decode_all(edge) == [1, 2, 3]
    repeated = message(2, value=2)
    edge.deliver(0, 1, repeated)  # the client did not receive the acknowledgement
    assert not edge.inbox and await repeated is None


@in_event_loop
async def test_repeated_call_gets_the_reply_of_the_first():
    edge, replies = RayServerConnection("client"), RayReplySender()
    first, second, third = (message(1, CALL) for _ in range(3))
    edge.deliver(0, 1, first)
    edge.deliver(0, 1, second)
    assert len(edge.inbox) == 1
    edge.decode(edge.inbox.popleft())
    replies.send(edge, first, 42, None)
    edge.deliver(0, 1, third)
    assert [from_body(*(await call)) for call in (first, second, third)] == [42, 42, 42]
    edge.deliver(0, 2, message(2))
    assert list(edge._unconfirmed) == [2]  # results that the client has received are dropped


@in_event_loop
async def test_new_client_generation_drops_old_calls_and_rejects_the_old_client():
    edge = RayServerConnection("client")
    for sequence, kind in ((1, SEND), (2, CALL), (3, SEND)):
        edge.deliver(1, 1, message(sequence, kind, sequence))
    edge.deliver(2, 1, message(1, value="new"))
    assert decode_all(edge) == [1, 3, "new"]  # one-way messages of the dead client are kept
    stale = message(4)
    edge.deliver(1, 1, stale)
    with pytest.raises(StaleGeneration):
        await stale


class FakeServer:
    """An actor handle that records messages as (sequence, oldest, value, future of the result)."""

    def __init__(self):
        self.messages = []
        self.receive_message = SimpleNamespace(remote=self._receive)

    def _receive(self, client, generation, sequence, oldest, kind, meta, block):
        result = Future()
        self.messages.append((sequence, oldest, from_body(meta, block), result))
        return SimpleNamespace(future=lambda: result)


class FakeWaiter:
    """A RayWaiter that runs callbacks when it is polled and times out when it would block."""

    def __init__(self):
        self.callbacks, self.delayed = [], []

    def put(self, callback, *args):
        self.callbacks.append((callback, args))

    def put_later(self, seconds, callback, *args):
        self.delayed.append((seconds, callback, args))

    def poll(self):
        while self.callbacks:
            callback, args = self.callbacks.pop(0)
            callback(*args)

    def wait(self, done, reason, blocked=False):
        raise TimeoutError(reason)


def attached_client(max_bytes=1 << 20):
    waiter, server = FakeWaiter(), FakeServer()
    client = RayClient("server", ("client", 3), waiter, max_bytes)
    client.attach(server)
    return client, waiter, server


def test_replies_match_their_calls_and_messages_carry_the_oldest_pending_sequence():
    client, _, server = attached_client()
    first, second = (client.call("replay", "count", (n,), {}) for n in (1, 2))
    assert not first.ready() and client.awaiting_replies
    server.messages[1][3].set_result(to_body(pack("second")))
    assert second.ready() and second.result() == "second" and not first.ready()
    server.messages[0][3].set_result(to_body(pack("first")))
    assert first.ready() and first.result() == "first"
    client.send("replay", "add", (3,), {})
    assert [message[:2] for message in server.messages] == [(1, 1), (2, 1), (3, 3)]


def test_full_mailbox_blocks_the_sender():
    client, _, server = attached_client(max_bytes=1000)
    client.send("replay", "add", (b"x" * 5000,), {})  # an empty mailbox accepts any size
    with pytest.raises(TimeoutError, match="space in the mailbox of replay"):
        client.send("replay", "add", (1,), {})
    server.messages[0][3].set_result(None)
    client.send("replay", "add", (1,), {})
    client, _, _ = attached_client()
    for n in range(MAX_IN_FLIGHT):
        client.send("replay", "add", (n,), {})
    with pytest.raises(TimeoutError, match="space in the mailbox"):
        client.send("replay", "add", (0,), {})


@pytest.mark.reliability("P1")
def test_replacement_server_receives_the_unhandled_messages_in_order():
    client, waiter, server = attached_client()
    client.send("replay", "add", (1,), {})
    reply = client.call("replay", "count", (), {})
    client.send("replay", "add", (2,), {})
    server.messages[0][3].set_result(None)
    waiter.poll()
    client.attach(replacement := FakeServer())
    assert [(sequence, call[1], call[2]) for sequence, _, call, _ in replacement.messages] == [
        (1, "count", ()),
        (2, "add", (2,)),
    ]
    server.messages[1][3].set_result(to_body(pack("too late")))
    assert not reply.ready()
    replacement.messages[0][3].set_result(to_body(pack(7)))
    assert reply.ready() and reply.result() == 7


@pytest.mark.reliability("P1", "P4")
def test_connection_error_is_retried_and_stale_generation_is_raised():
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'trooprl[ray]'")
    from ray.exceptions import ActorDiedError, ActorUnavailableError

    client, waiter, server = attached_client()
    client.send("replay", "add", (1,), {})
    server.messages[0][3].set_exception(ActorUnavailableError("connection lost", None))
    waiter.poll()
    assert waiter.delayed == [(RETRY_S, client.on_retry, (1, 1))]
    client.on_retry(1, 1)
    assert server.messages[1][:2] == (1, 1)  # the same sequence number, by which the server recognizes it
    server.messages[1][3].set_exception(ActorDiedError())
    waiter.poll()
    assert len(server.messages) == 2 and len(waiter.delayed) == 1  # waits for the driver to attach another
    client.attach(replacement := FakeServer())
    client.on_retry(1, 1)  # of the first server: ignored
    assert len(replacement.messages) == 1
    replacement.messages[0][3].set_exception(StaleGeneration("a newer client has taken over"))
    with pytest.raises(StaleGeneration):
        waiter.poll()
