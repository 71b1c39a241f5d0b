"""Edges over Ray, without Ray: letters that come late, twice, out of turn or from the past."""

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace

import numpy
import pytest
import torch

from troop.core.errors import BadInput, SetupProblem
from troop.core.program import Program, Schedule
from troop.engines.pool import host_handles
from troop.engines.ray import cluster as on_ray_cluster
from troop.engines.ray.client import LETTERS, PAUSE, RayClient, StaleGeneration, from_body, to_body
from troop.engines.ray.placement import LEAST, bundles, parse_requests, role_of
from troop.engines.ray.pool import deferrable_hosts
from troop.engines.ray.server import RayMessage, RayReplySender, RayServerConnection
from troop.engines.rpc.codec import pack
from troop.engines.rpc.message import CALL, SEND


def message(order, kind=SEND, said="x"):
    return RayMessage(order, kind, to_body(pack(said)))


def read(edge):
    values = [edge.decode(edge.inbox.popleft()) for _ in range(len(edge.inbox))]
    return values


def served(test):
    """Run in an event loop: letters belong to one."""

    def run():
        async def within():
            await test()

        asyncio.run(within())

    return run


def test_values_travel_as_one_numpy_array_and_can_be_written_again():
    value = {"x": torch.arange(6.0).reshape(2, 3), "y": numpy.arange(3), "z": (1, "a", None)}
    meta, block = to_body(pack(value))
    assert block.dtype == numpy.uint8
    block.flags.writeable = False  # as Ray gives it back
    back = from_body(meta, block)
    assert back["x"].equal(value["x"]) and (back["y"] == value["y"]).all() and back["z"] == value["z"]
    back["x"] += 1
    assert from_body(*to_body(pack(None))) is None


@served
async def test_letters_are_served_in_the_order_they_were_sent_and_once():
    edge = RayServerConnection("asker")
    for order in (2, 3, 1):
        edge.take(0, 1, message(order, said=order))
    assert read(edge) == [1, 2, 3]
    again = message(2, said=2)
    edge.take(0, 1, again)  # its acknowledgement was lost on the way
    assert not edge.inbox and await again is None


@served
async def test_a_question_asked_again_gets_the_answer_it_had():
    edge, replies = RayServerConnection("asker"), RayReplySender()
    first, second, third = (message(1, CALL) for _ in range(3))
    edge.take(0, 1, first)
    edge.take(0, 1, second)
    assert len(edge.inbox) == 1
    edge.decode(edge.inbox.popleft())
    replies.send(edge, first, 42, None)
    edge.take(0, 1, third)
    assert [from_body(*(await call)) for call in (first, second, third)] == [42, 42, 42]
    edge.take(0, 2, message(2))
    assert list(edge._known) == [2]  # nothing is kept that its asker has


@served
async def test_a_new_asker_begins_anew_and_the_old_one_is_turned_away():
    edge = RayServerConnection("asker")
    for order, kind in ((1, SEND), (2, CALL), (3, SEND)):
        edge.take(1, 1, message(order, kind, order))
    edge.take(2, 1, message(1, said="new"))
    assert read(edge) == [1, 3, "new"]  # what was told is kept, questions of the dead are not
    late = message(4)
    edge.take(1, 1, late)
    with pytest.raises(StaleGeneration):
        await late


class FakeServer:
    """A server's handle that keeps letters until the test says what becomes of them."""

    def __init__(self):
        self.sent = []
        self.message = SimpleNamespace(remote=self._remote)

    def _remote(self, client, generation, order, settled, kind, meta, block):
        outcome = Future()
        self.sent.append((order, settled, from_body(meta, block), outcome))
        return SimpleNamespace(future=lambda: outcome)


class Thread:
    """The role's thread: takes in events when it looks."""

    def __init__(self):
        self.events, self.waits, self.call_async = [], [], []

    def put(self, edge, *event):
        self.events.append((edge, event))

    def put_later(self, seconds, edge, *event):
        self.call_async.append((seconds, edge, event))

    def look(self):
        while self.events:
            edge, event = self.events.pop(0)
            edge.on_outcome(*event)

    def wait(self, done, why, full=False):
        self.waits.append(why)
        raise TimeoutError(why)


def client(max_bytes=1 << 20):
    thread, connect = Thread(), FakeServer()
    edge = RayClient("server", ("me", 3), thread, max_bytes)
    edge.attach(connect)
    return edge, thread, connect


def test_answers_come_to_their_questions_and_tell_what_is_settled():
    edge, _, connect = client()
    one, two = (edge.call("store", "count", (n,), {}) for n in (1, 2))
    assert not one.ready() and edge.awaiting_replies
    connect.sent[1][3].set_result(to_body(pack("second")))
    assert two.ready() and two.result() == "second" and not one.ready()
    connect.sent[0][3].set_result(to_body(pack("first")))
    assert one.ready() and one.result() == "first"
    edge.send("store", "add", (3,), {})
    assert [sent[:2] for sent in connect.sent] == [(1, 1), (2, 1), (3, 3)]


def test_a_full_mailbox_makes_the_sender_wait():
    edge, _, connect = client(max_bytes=1000)
    edge.send("store", "add", (b"x" * 5000,), {})  # an empty one takes anything
    with pytest.raises(TimeoutError, match="room in the mailbox of store"):
        edge.send("store", "add", (1,), {})
    connect.sent[0][3].set_result(None)
    edge.send("store", "add", (1,), {})
    edge, _, _ = client()
    for n in range(LETTERS):
        edge.send("store", "add", (n,), {})
    with pytest.raises(TimeoutError, match="room"):
        edge.send("store", "add", (0,), {})


def test_a_new_server_gets_what_the_last_one_left_in_order():
    edge, thread, connect = client()
    edge.send("store", "add", (1,), {})
    reply = edge.call("store", "count", (), {})
    edge.send("store", "add", (2,), {})
    connect.sent[0][3].set_result(None)
    thread.look()
    edge.attach(other := FakeServer())
    assert [(order, said[1], said[2]) for order, _, said, _ in other.sent] == [
        (1, "count", ()),
        (2, "add", (2,)),
    ]
    connect.sent[1][3].set_result(to_body(pack("too late")))
    assert not reply.ready()
    other.sent[0][3].set_result(to_body(pack(7)))
    assert reply.ready() and reply.result() == 7


def test_a_broken_connection_is_tried_again_and_a_newer_life_ends_this_one():
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'trooprl[ray]'")
    from ray.exceptions import ActorDiedError, ActorUnavailableError

    edge, thread, connect = client()
    edge.send("store", "add", (1,), {})
    connect.sent[0][3].set_exception(ActorUnavailableError("cut", None))
    thread.look()
    assert thread.call_async == [(PAUSE, edge, (1, 1, None))]
    edge.on_outcome(1, 1, None)
    assert connect.sent[1][:2] == (1, 1)  # the same number: the server will know it
    connect.sent[1][3].set_exception(ActorDiedError())
    thread.look()
    assert len(connect.sent) == 2 and len(thread.call_async) == 1  # the launcher will send another server
    edge.attach(other := FakeServer())
    other.sent[0][3].set_exception(StaleGeneration("a newer me"))
    with pytest.raises(StaleGeneration):
        thread.look()


class StepRecorder:
    """Steps."""

    def step(self):
        """Nothing."""


class Passive:
    """Only answers."""


def test_resources_go_to_all_that_step_then_to_roles_then_to_single_hosts():
    program = Program("placed")
    program.add("replay", Passive)
    for i in range(2):
        program.add(f"actor{i}", StepRecorder)
    program.add("runner/0", StepRecorder)
    wanted = parse_requests(("0.5", "actor=2", "actor1=3"), "cpus", "CPU") + parse_requests(
        ("runner=1",), "gpus", "GPU"
    )
    found = bundles(host_handles(program), wanted + parse_requests(("actor:sim=4",), "resources"))
    assert found == {
        "replay": {"CPU": LEAST},
        "actor0": {"CPU": 2.0, "sim": 4.0},
        "actor1": {"CPU": 3.0, "sim": 4.0},
        "runner/0": {"CPU": 0.5, "GPU": 1.0},
    }
    assert [role_of(name) for name in ("actor12", "runner/0/1", "7")] == ["actor", "runner", "7"]


@pytest.mark.parametrize("text", ["actor=", "=1", "actor=nan", "actor=inf", "actor 1", "1e999"])
def test_what_is_no_wish_is_refused(text):
    with pytest.raises(BadInput, match=r"--engine.cpus is"):
        parse_requests((text,), "cpus", "CPU")


def test_a_ray_that_does_not_start_is_told_in_one_sentence(monkeypatch):
    ray = pytest.importorskip("ray")

    def init(**_):
        raise RuntimeError("The node did not come up.\nmany\nlines")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(
        SetupProblem, match=r"^Ray could not start on this machine: The node did not come up\.$"
    ):
        on_ray_cluster._start()


class Served:
    """A role that others ask."""


class Asks:
    """A role that asks."""

    def __init__(self, server):
        self.server = server

    def step(self):
        """Nothing."""


def test_a_run_begins_with_one_host_of_each_kind_and_all_who_are_asked():
    program = Program("apex")
    stores = [program.add(f"replay{i}", Served) for i in range(2)]
    program.add("learner", type("Learner", (Asks,), {}), stores[0])
    for i in range(3):
        program.add(f"actor{i}", Asks, stores[i % 2])
    program.add("evaluator", type("Judge", (Asks,), {}), stores[0])
    program.schedule("evaluator", Schedule(seconds=1))
    assert deferrable_hosts(host_handles(program)) == {"actor1", "actor2", "evaluator"}
