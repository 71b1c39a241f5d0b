"""Edges over Ray, without Ray: letters that come late, twice, out of turn or from the past."""

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace

import numpy
import pytest
import torch

from troop.core.errors import BadInput, SetupProblem
from troop.core.program import Program, Schedule
from troop.engines.processes.pool import members
from troop.engines.ray import cluster as on_ray_cluster
from troop.engines.ray.client import LETTERS, PAUSE, RayAsking, Replaced, body, opened
from troop.engines.ray.placement import LEAST, bundles, role_of, wishes
from troop.engines.ray.pool import can_wait
from troop.engines.ray.server import RayAnswers, RayLetter, RayServing
from troop.engines.rpc.codec import pack
from troop.engines.rpc.message import CALL, TELL


def letter(order, kind=TELL, said="x"):
    return RayLetter(order, kind, body(pack(said)))


def read(edge):
    values = [edge.open(edge.inbox.popleft()) for _ in range(len(edge.inbox))]
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
    meta, block = body(pack(value))
    assert block.dtype == numpy.uint8
    block.flags.writeable = False  # as Ray gives it back
    back = opened(meta, block)
    assert back["x"].equal(value["x"]) and (back["y"] == value["y"]).all() and back["z"] == value["z"]
    back["x"] += 1
    assert opened(*body(pack(None))) is None


@served
async def test_letters_are_served_in_the_order_they_were_sent_and_once():
    edge = RayServing("asker")
    for order in (2, 3, 1):
        edge.take(0, 1, letter(order, said=order))
    assert read(edge) == [1, 2, 3]
    again = letter(2, said=2)
    edge.take(0, 1, again)  # its acknowledgement was lost on the way
    assert not edge.inbox and await again is None


@served
async def test_a_question_asked_again_gets_the_answer_it_had():
    edge, answers = RayServing("asker"), RayAnswers()
    first, second, third = (letter(1, CALL) for _ in range(3))
    edge.take(0, 1, first)
    edge.take(0, 1, second)
    assert len(edge.inbox) == 1
    edge.open(edge.inbox.popleft())
    answers.send(edge, first, 42, None)
    edge.take(0, 1, third)
    assert [opened(*(await ask)) for ask in (first, second, third)] == [42, 42, 42]
    edge.take(0, 2, letter(2))
    assert list(edge._known) == [2]  # nothing is kept that its asker has


@served
async def test_a_new_asker_begins_anew_and_the_old_one_is_turned_away():
    edge = RayServing("asker")
    for order, kind in ((1, TELL), (2, CALL), (3, TELL)):
        edge.take(1, 1, letter(order, kind, order))
    edge.take(2, 1, letter(1, said="new"))
    assert read(edge) == [1, 3, "new"]  # what was told is kept, questions of the dead are not
    late = letter(4)
    edge.take(1, 1, late)
    with pytest.raises(Replaced):
        await late


class Wire:
    """A server's handle that keeps letters until the test says what becomes of them."""

    def __init__(self):
        self.sent = []
        self.letter = SimpleNamespace(remote=self._remote)

    def _remote(self, asker, life, order, settled, kind, meta, block):
        outcome = Future()
        self.sent.append((order, settled, opened(meta, block), outcome))
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
            edge.on_step(*event)

    def wait(self, done, why, full=False):
        self.waits.append(why)
        raise TimeoutError(why)


def asking(budget=1 << 20):
    thread, wire = Thread(), Wire()
    edge = RayAsking("server", ("me", 3), thread, budget)
    edge.attach(wire)
    return edge, thread, wire


def test_answers_come_to_their_questions_and_tell_what_is_settled():
    edge, _, wire = asking()
    one, two = (edge.ask("store", "count", (n,), {}) for n in (1, 2))
    assert not one.ready() and edge.expecting
    wire.sent[1][3].set_result(body(pack("second")))
    assert two.ready() and two.result() == "second" and not one.ready()
    wire.sent[0][3].set_result(body(pack("first")))
    assert one.ready() and one.result() == "first"
    edge.send("store", "add", (3,), {})
    assert [sent[:2] for sent in wire.sent] == [(1, 1), (2, 1), (3, 3)]


def test_a_full_mailbox_makes_the_sender_wait():
    edge, _, wire = asking(budget=1000)
    edge.send("store", "add", (b"x" * 5000,), {})  # an empty one takes anything
    with pytest.raises(TimeoutError, match="room in the mailbox of store"):
        edge.send("store", "add", (1,), {})
    wire.sent[0][3].set_result(None)
    edge.send("store", "add", (1,), {})
    edge, _, _ = asking()
    for n in range(LETTERS):
        edge.send("store", "add", (n,), {})
    with pytest.raises(TimeoutError, match="room"):
        edge.send("store", "add", (0,), {})


def test_a_new_server_gets_what_the_last_one_left_in_order():
    edge, thread, wire = asking()
    edge.send("store", "add", (1,), {})
    reply = edge.ask("store", "count", (), {})
    edge.send("store", "add", (2,), {})
    wire.sent[0][3].set_result(None)
    thread.look()
    edge.attach(other := Wire())
    assert [(order, said[1], said[2]) for order, _, said, _ in other.sent] == [
        (1, "count", ()),
        (2, "add", (2,)),
    ]
    wire.sent[1][3].set_result(body(pack("too late")))
    assert not reply.ready()
    other.sent[0][3].set_result(body(pack(7)))
    assert reply.ready() and reply.result() == 7


def test_a_broken_connection_is_tried_again_and_a_newer_life_ends_this_one():
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'trooprl[ray]'")
    from ray.exceptions import ActorDiedError, ActorUnavailableError

    edge, thread, wire = asking()
    edge.send("store", "add", (1,), {})
    wire.sent[0][3].set_exception(ActorUnavailableError("cut", None))
    thread.look()
    assert thread.call_async == [(PAUSE, edge, (1, 1, None))]
    edge.on_step(1, 1, None)
    assert wire.sent[1][:2] == (1, 1)  # the same number: the server will know it
    wire.sent[1][3].set_exception(ActorDiedError())
    thread.look()
    assert len(wire.sent) == 2 and len(thread.call_async) == 1  # the launcher will send another server
    edge.attach(other := Wire())
    other.sent[0][3].set_exception(Replaced("a newer me"))
    with pytest.raises(Replaced):
        thread.look()


class StepRecorder:
    """Steps."""

    def step(self):
        """Nothing."""


class Answers:
    """Only answers."""


def test_resources_go_to_all_that_step_then_to_roles_then_to_single_hosts():
    program = Program("placed")
    program.add("replay", Answers)
    for i in range(2):
        program.add(f"actor{i}", StepRecorder)
    program.add("runner/0", StepRecorder)
    wanted = wishes(("0.5", "actor=2", "actor1=3"), "cpus", "CPU") + wishes(("runner=1",), "gpus", "GPU")
    found = bundles(members(program), wanted + wishes(("actor:sim=4",), "resources"))
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
        wishes((text,), "cpus", "CPU")


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
    assert can_wait(members(program)) == {"actor1", "actor2", "evaluator"}
