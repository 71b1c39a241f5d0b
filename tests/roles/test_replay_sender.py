from fake_remote import FakeRemote

from troop.core.batch import Rollout
from troop.roles.replay_sender import MAX_IN_FLIGHT, ReplaySender, Tee


class RemoteReplay:
    """A replay on another host."""

    def __init__(self):
        self.wants_data, self.add, self.end_streams = FakeRemote(), FakeRemote(), FakeRemote()


class LocalReplay:
    """A replay on the same host; counts how often it is asked."""

    def __init__(self):
        self.accepting, self.rollouts, self.asked = True, [], 0

    def wants_data(self):
        self.asked += 1
        return True if self.accepting else None

    def add(self, rollout):
        self.rollouts.append(rollout)


def make_rollout():
    return Rollout(*[None] * 7)


def make_tee():
    replays = [RemoteReplay(), RemoteReplay()]
    part = ReplaySender(replays[1], lambda rollout: f"part of {id(rollout)}")
    return Tee([ReplaySender(replays[0]), part]), replays


def accepting_tee():
    """A Tee whose replays have replied that they accept rows."""
    tee, replays = make_tee()
    assert tee.wants_data() is None  # no reply has arrived
    for replay in replays:
        replay.wants_data.deliver(True)
    assert tee.wants_data() is True
    return tee, replays


def test_tee_sends_each_replay_its_part_of_every_rollout():
    tee, (first, second) = make_tee()
    rollouts = [make_rollout() for _ in range(3)]
    tee.end_streams("streams")
    for rollout in rollouts:
        tee.add(rollout)
    assert first.end_streams.sent == second.end_streams.sent == [("streams",)]
    assert first.add.sent == [(rollout,) for rollout in rollouts]
    assert second.add.sent == [(f"part of {id(rollout)}",) for rollout in rollouts]


def test_sender_sends_nothing_if_the_transform_returns_none():
    replay = RemoteReplay()
    sender = ReplaySender(replay, lambda rollout: None)
    sender.send(make_rollout())
    assert not replay.add.sent and not replay.wants_data.requests and sender.can_send()


def test_tee_wants_data_only_if_all_replays_do_and_repeats_the_request_after_none():
    tee, (first, second) = accepting_tee()
    tee.add(make_rollout())
    first.wants_data.deliver(True)
    second.wants_data.deliver(None)
    assert tee.wants_data() is None and len(second.wants_data.undelivered) == 1  # requested again
    assert not first.wants_data.undelivered
    assert tee.wants_data() is None and len(second.wants_data.undelivered) == 1  # one request at a time
    second.wants_data.deliver(None)
    assert tee.wants_data() is None
    second.wants_data.deliver(True)
    assert tee.wants_data() is True


def test_sender_stops_after_a_few_unacknowledged_rollouts():
    tee, (first, second) = accepting_tee()
    sent = 0
    while tee.wants_data():
        tee.add(make_rollout())
        sent += 1
        first.wants_data.deliver(True)  # the second replay does not reply
    assert sent == MAX_IN_FLIGHT + 1
    second.wants_data.deliver(True)
    assert tee.wants_data() is True


def test_several_rollouts_of_one_step_are_all_sent_and_all_acknowledged():
    replay = RemoteReplay()
    sender = ReplaySender(replay)
    for _ in range(MAX_IN_FLIGHT + 3):  # one vector step may complete several rollouts
        sender.send(make_rollout())
    assert len(replay.add.sent) == len(replay.wants_data.requests) == MAX_IN_FLIGHT + 3
    for _ in range(2):
        assert not sender.can_send()
        replay.wants_data.deliver(True)
    assert not sender.can_send()
    replay.wants_data.deliver(True)
    assert sender.can_send()


def test_replay_on_the_same_host_is_asked_once_per_rollout_when_its_answer_is_needed():
    replay = LocalReplay()
    sender = ReplaySender(replay)
    assert sender.can_send() and replay.asked == 0
    sender.send(make_rollout())
    sender.send(make_rollout())
    assert replay.asked == 0 and len(replay.rollouts) == 2
    assert sender.can_send() and replay.asked == 2
    assert sender.can_send() and replay.asked == 2
    sender.send(make_rollout())
    replay.accepting = False  # the answer is that of the moment
    assert not sender.can_send() and replay.asked == 4  # asked again after None
    replay.accepting = True
    assert sender.can_send() and replay.asked == 5
    sender.invalidate()
    assert sender.can_send() and replay.asked == 6
