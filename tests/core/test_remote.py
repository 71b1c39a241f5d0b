import pytest

from troop.core.remote import Prefetch, RemoteCallable, batched, call_async, readonly, send


class Peer:
    """Counts what it is asked."""

    def __init__(self):
        self.asked = 0

    def ask(self, x, *, plus=0):
        """One more question."""
        self.asked += 1
        return self.asked * 100 + x + plus


class Slow(RemoteCallable):
    """A method elsewhere whose answers come when the test says so."""

    def __init__(self):
        self.questions, self.told, self.ready = [], [], 0

    def __call__(self, *args, **kwargs):
        return args, kwargs

    def call_async(self, *args, **kwargs):
        self.questions.append((args, kwargs))
        return Answer(self, len(self.questions))

    def send(self, *args, **kwargs):
        self.told.append((args, kwargs))


class Answer:
    """The n-th answer is n."""

    def __init__(self, slow, number):
        self.slow, self.number = slow, number

    def ready(self):
        return self.slow.ready >= self.number

    def result(self):
        return self.number


def test_a_peer_here_is_asked_when_its_answer_is_wanted_and_only_once():
    peer = Peer()
    answer = call_async(peer.ask, 1, plus=2)
    assert peer.asked == 0 and answer.ready()
    peer.asked = 4  # what happens meanwhile is seen
    assert answer.result() == answer.result() == 503 and peer.asked == 5


def test_telling_a_peer_here_is_calling_it():
    peer = Peer()
    assert send(peer.ask, 1) is None and peer.asked == 1


def test_asking_ahead_here_is_never_stale():
    peer = Peer()
    ahead = Prefetch(peer.ask, 3).deep(2)
    assert peer.asked == 0
    assert [ahead.take(), ahead.take()] == [103, 203]


def test_a_failure_of_a_peer_here_surfaces_where_the_answer_is_wanted():
    answer = call_async(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        answer.result()


def test_elsewhere_goes_through_the_engine():
    slow = Slow()
    send(slow, 1, b=2)
    assert slow.told == [((1,), {"b": 2})] and call_async(slow, 5).result() == 1
    assert slow.questions == [((5,), {})]


def test_ahead_keeps_its_questions_under_way_and_takes_answers_in_order():
    slow = Slow()
    ahead = Prefetch(slow, 7).deep(3)
    assert slow.questions == []
    assert ahead.take() is None and len(slow.questions) == 3
    assert ahead.take() is None and len(slow.questions) == 3
    slow.ready = 2
    assert [ahead.take(), ahead.take(), ahead.take()] == [1, 2, None]
    assert len(slow.questions) == 5  # one more for each answer taken
    slow.ready = 9
    assert ahead.take() == 3


def test_marks_leave_methods_as_they_are():
    def method(x):
        return x

    assert batched(method) is method and method.batched and readonly(method) is method and method.readonly
