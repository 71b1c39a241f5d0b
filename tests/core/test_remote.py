import pytest

from troop.core.remote import Prefetch, RemoteCallable, batched, call_async, readonly, send


class Counter:
    """A peer on the same host; each call returns 100 times the number of calls, plus its arguments."""

    def __init__(self):
        self.calls = 0

    def count(self, x, *, plus=0):
        self.calls += 1
        return self.calls * 100 + x + plus


class FakeRemote(RemoteCallable):
    """A method of a remote peer; the reply to the n-th request is n and arrives once `replied` >= n."""

    def __init__(self):
        self.requests, self.sent, self.replied = [], [], 0

    def __call__(self, *args, **kwargs):
        raise AssertionError("the caller must not block")

    def call_async(self, *args, **kwargs):
        self.requests.append((args, kwargs))
        return FakeReply(self, len(self.requests))

    def send(self, *args, **kwargs):
        self.sent.append((args, kwargs))


class FakeReply:
    def __init__(self, remote, number):
        self.remote, self.number = remote, number

    def ready(self):
        return self.remote.replied >= self.number

    def result(self):
        assert self.ready()
        return self.number


class NoneThenValues(FakeRemote):
    """As FakeRemote, but the replies to the first three requests are None."""

    def call_async(self, *args, **kwargs):
        reply = super().call_async(*args, **kwargs)
        reply.result = lambda: None if reply.number <= 3 else reply.number
        return reply


def test_async_call_on_the_same_host_runs_when_its_result_is_requested_and_only_once():
    peer = Counter()
    future = call_async(peer.count, 1, plus=2)
    assert peer.calls == 0 and future.ready()
    peer.calls = 4  # the call sees changes made before the result is requested
    assert future.result() == future.result() == 503 and peer.calls == 5


def test_async_call_on_the_same_host_raises_where_the_result_is_requested():
    future = call_async(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        future.result()


def test_send_on_the_same_host_is_a_plain_call():
    peer = Counter()
    assert send(peer.count, 1) is None and peer.calls == 1


def test_remote_calls_go_through_the_engine():
    remote = FakeRemote()
    remote.replied = 1
    send(remote, 1, b=2)
    assert remote.sent == [((1,), {"b": 2})] and call_async(remote, 5).result() == 1
    assert remote.requests == [((5,), {})]


@pytest.mark.parametrize("depth", [1, 3])
def test_prefetch_calls_a_peer_on_the_same_host_at_poll_time_once_per_poll(depth):
    peer = Counter()
    prefetch = Prefetch(peer.count, depth)
    prefetch.fill(3, plus=4)
    assert prefetch.in_flight == depth and prefetch.ready() and peer.calls == 0
    peer.calls = 10  # the reply reflects the peer's state at the time of the poll
    assert prefetch.poll() == 1107 and peer.calls == 11 and prefetch.in_flight == depth - 1
    prefetch.fill(3, plus=4)
    assert prefetch.poll() == 1207 and peer.calls == 12


def test_prefetch_without_a_request_has_no_reply():
    for method in (Counter().count, FakeRemote()):
        prefetch = Prefetch(method)
        assert prefetch.in_flight == 0 and not prefetch.ready() and prefetch.poll() is None


def test_prefetch_raises_the_error_of_a_peer_on_the_same_host_and_drops_that_request():
    prefetch = Prefetch(lambda x: 1 // x, depth=2)
    prefetch.request(0)
    prefetch.request(1)
    with pytest.raises(ZeroDivisionError):
        prefetch.poll()
    assert prefetch.poll() == 1


def test_prefetch_keeps_depth_remote_requests_in_flight_and_returns_replies_in_order():
    remote = FakeRemote()
    prefetch = Prefetch(remote, depth=3)
    assert remote.requests == []
    for _ in range(2):
        prefetch.fill(7, k=1)
        assert prefetch.poll() is None and remote.requests == [((7,), {"k": 1})] * 3
    remote.replied = 2
    replies = []
    for _ in range(3):
        replies.append(prefetch.poll())
        prefetch.fill(7, k=1)
    assert replies == [1, 2, None]
    assert len(remote.requests) == 5 and prefetch.in_flight == 3  # one new request for each reply taken
    remote.replied = 9
    assert prefetch.ready() and prefetch.poll() == 3


def test_prefetch_sends_each_request_with_its_own_arguments():
    remote = FakeRemote()
    prefetch = Prefetch(remote)
    version = -1
    for _ in range(4):
        prefetch.fill(version)
        prefetch.fill("ignored: a request is in flight")
        remote.replied += 1
        version = prefetch.poll()
    assert [args for args, _ in remote.requests] == [(-1,), (1,), (2,), (3,)]


def test_prefetch_requests_may_exceed_the_depth_and_none_is_sent_to_fill_it_then():
    remote = FakeRemote()
    prefetch = Prefetch(remote, depth=1)
    for number in range(3):
        prefetch.request(number)
    prefetch.fill("not sent")
    assert prefetch.in_flight == len(remote.requests) == 3
    remote.replied = 3
    assert [prefetch.poll() for _ in range(4)] == [1, 2, 3, None]


def test_prefetch_distinguishes_a_none_reply_from_a_missing_one():
    remote = NoneThenValues()
    prefetch = Prefetch(remote)
    prefetch.fill()
    assert not prefetch.ready() and prefetch.poll() is None and prefetch.in_flight == 1  # not arrived
    remote.replied = 1
    assert prefetch.ready() and prefetch.poll() is None and prefetch.in_flight == 0  # the reply is None
    remote.replied = 9
    replies = []
    while not replies or replies[-1] is None:  # a caller that requests again after None
        prefetch.fill()
        replies.append(prefetch.poll())
    assert replies == [None, None, 4]


def test_markers_return_the_method_itself():
    def method(x):
        return x

    assert batched(method) is method and method.batched and readonly(method) is method and method.readonly
