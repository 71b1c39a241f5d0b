from collections import deque

from troop.core.batch import Rollout
from troop.core.remote import RemoteCallable
from troop.roles.replay_sender import MAX_IN_FLIGHT, ReplaySender, Tee


class Post(RemoteCallable):
    """A method elsewhere: what was told it, and answers that come when they are let."""

    def __init__(self):
        self.told, self.replies = [], deque()

    def send(self, *args):
        self.told.append(args)

    def call_async(self, *args):
        self.replies.append(Reply())
        return self.replies[-1]

    def __call__(self, *args):
        raise AssertionError("nobody may wait for a store")


class Reply:
    def __init__(self):
        self.answer = []

    def ready(self):
        return bool(self.answer)

    def result(self):
        return self.answer[0]


class ReplayBuffer:
    """A store elsewhere."""

    def __init__(self):
        self.wants_data, self.add, self.end_streams = Post(), Post(), Post()

    def says(self, answer):
        self.wants_data.replies.popleft().answer.append(answer)


def piece():
    return Rollout(*[None] * 7)


def fan():
    stores = [ReplayBuffer(), ReplayBuffer()]
    return Tee(
        [ReplaySender(stores[0]), ReplaySender(stores[1], lambda piece: f"part of {id(piece)}")]
    ), stores


def known():
    """A fan whose stores said that they want data."""
    made, stores = fan()
    assert made.wants_data() is None  # nobody was asked yet
    for store in stores:
        store.says(True)
    assert made.wants_data() is True
    return made, stores


def test_each_store_gets_its_part_of_every_piece():
    made, (first, second) = fan()
    pieces = [piece() for _ in range(3)]
    made.end_streams("streams")
    for each in pieces:
        made.add(each)
    assert first.end_streams.told == second.end_streams.told == [("streams",)]
    assert first.add.told == [(each,) for each in pieces]
    assert second.add.told == [(f"part of {id(each)}",) for each in pieces]


def test_a_part_of_nothing_is_not_sent():
    store = ReplayBuffer()
    way = ReplaySender(store, lambda piece: None)
    way.send(piece())
    assert not store.add.told and not store.wants_data.replies and way.open()


def test_both_must_want_data_and_a_no_is_asked_again_until_it_is_a_yes():
    made, (first, second) = known()
    made.add(piece())
    first.says(True)
    second.says(None)
    assert made.wants_data() is None and len(second.wants_data.replies) == 1  # the next question
    assert not first.wants_data.replies
    assert made.wants_data() is None and len(second.wants_data.replies) == 1  # one at a time
    second.says(None)
    assert made.wants_data() is None
    second.says(True)
    assert made.wants_data() is True


def test_a_store_that_does_not_answer_stops_it_after_a_few_pieces():
    made, (first, second) = known()
    sent = 0
    while made.wants_data():
        made.add(piece())
        sent += 1
        first.says(True)  # the other is silent
    assert sent == MAX_IN_FLIGHT + 1
    second.says(True)
    assert made.wants_data() is True
