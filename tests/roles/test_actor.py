import pytest
import torch
from fake_remote import FakeRemote

from troop.algorithms.dqn import DQNConfig
from troop.envs import Toy
from troop.roles.actor import Actor
from troop.roles.replay_sender import MAX_IN_FLIGHT
from troop.systems.components import ActorConfig, make_sampler

CONFIG = DQNConfig(hidden=(8,), n_step=2)


class FakeReplay:
    """Records all messages in order."""

    def __init__(self):
        self.accepting, self.messages = True, []

    def wants_data(self):
        return True if self.accepting else None

    def add(self, rollout):
        self.messages.append(rollout)

    def end_streams(self, streams=None):
        self.messages.append(streams)


class FakeWeights:
    """Has a new version at every request, and counts them."""

    def __init__(self, policy, published=True):
        self.version, self.policy, self.requests, self.published = 0, policy, 0, published

    def latest(self, after):
        self.requests += 1
        self.version += 5
        return (self.version, self.policy.state_dict()) if self.published else None


def make_actor(envs=4, replay=None, weight_sync_steps=16, published=True, **config):
    torch.manual_seed(1)
    env = Toy("Clock", envs, limit=6, discrete=True, autoreset="next_step")
    defaults = {"seed": 3, "first_stream": 8, "chunk_length": 3, "actor_priorities": True}
    exploration = tuple(0.1 * i for i in range(envs))
    sampler = make_sampler(CONFIG, env, ActorConfig(**(defaults | config), exploration=exploration))
    weights = FakeWeights(CONFIG.policy(env.spec), published)
    return Actor(sampler, replay or FakeReplay(), weights, weight_sync_steps)


@pytest.mark.parametrize("envs, collectors", [(1, 1), (2, 2), (3, 1), (4, 2)])
def test_even_number_of_envs_is_double_buffered(envs, collectors):
    actor = make_actor(envs)
    assert len(actor.sampler.collectors) == collectors
    explore = torch.cat([collector.explore for collector in actor.sampler.collectors])
    assert torch.allclose(explore, torch.arange(envs) * 0.1)
    metrics = [actor.step() for _ in range(3)]
    assert all(m["count/act_s"] > 0 and m["count/env_s"] > 0 for m in metrics)
    assert torch.cat(actor.sampler.streams()).tolist() == list(range(8, 8 + envs))


def test_double_buffering_is_off_on_request_and_with_recreated_envs():
    for config in ({"double_buffered": False}, {"recreate_every": 9}):
        assert len(make_actor(4, **config).sampler.collectors) == 1


def test_actor_does_not_act_before_the_first_weights():
    actor = make_actor(published=False)
    assert [actor.step() for _ in range(5)] == [None] * 5 and actor.weights.requests == 5
    actor.weights.published = True
    assert actor.step()["count/env_steps"] == 2


def test_weights_are_requested_periodically_and_the_lag_is_reported():
    actor = make_actor(envs=3, weight_sync_steps=12)
    metrics = [actor.step() for _ in range(21)]
    env_steps = sum(m["count/env_steps"] for m in metrics)
    assert env_steps == 54  # rows that only reset an env are not env steps
    assert actor.weights.requests == 1 + (env_steps - 1) // 12
    assert [m["policy/lag"] for m in metrics if "policy/lag" in m] == [5] * (actor.weights.requests - 1)
    assert actor.version == actor.weights.version
    assert float(next(m["actor/explore"] for m in metrics if "actor/explore" in m)) == pytest.approx(0.1)


def test_remote_weights_are_requested_only_when_due_and_never_blocked_on():
    actor = make_actor(envs=3, weight_sync_steps=12)
    latest = FakeRemote(actor.weights.latest)
    actor = Actor(actor.sampler, actor.replay, type("Remote", (), {"latest": latest}), 12)
    assert [actor.step() for _ in range(3)] == [None] * 3 and latest.requests == [(-1,)]
    latest.deliver()
    assert actor.step() is not None and actor.version == 5
    while actor.env_steps < 12:
        assert latest.requests == [(-1,)]  # not due
        actor.step()
    for _ in range(30):  # due: one request, and the actor acts on while it is in flight
        assert actor.step() is not None
    assert latest.requests == [(-1,), (5,)] and actor.version == 5 and actor.env_steps > 36
    latest.deliver()
    actor.step()  # loads the reply; the next period is over as well
    assert actor.version == 10 and latest.requests == [(-1,), (5,), (10,)]


def test_remote_weights_are_requested_again_while_nothing_is_published():
    actor = make_actor(envs=3, published=False)
    latest = FakeRemote(actor.weights.latest)
    actor = Actor(actor.sampler, actor.replay, type("Remote", (), {"latest": latest}), 12)
    for requests in range(1, 5):
        assert actor.step() is None and latest.requests == [(-1,)] * requests
        latest.deliver()


@pytest.mark.reliability("R8")
def test_restored_older_weights_are_loaded_with_a_lag_of_zero():
    actor = make_actor(envs=3, weight_sync_steps=3)
    for _ in range(4):
        actor.step()
    actor.weights.version = 0
    metrics = [actor.step() for _ in range(2)]
    assert actor.version == actor.weights.version <= 10
    assert min(m["policy/lag"] for m in metrics if "policy/lag" in m) == 0


def test_streams_are_ended_once_before_the_first_rollout():
    actor = make_actor()
    for _ in range(40):
        actor.step()
    first, second, *rollouts = actor.replay.messages
    assert first.tolist() == [8, 9] and second.tolist() == [10, 11]
    assert len(rollouts) > 8 and all("priority" in rollout.extras for rollout in rollouts)


def test_actor_pauses_while_the_replay_accepts_no_rows():
    replay = FakeReplay()
    actor = make_actor(3, replay)
    for _ in range(20):
        actor.step()
    replay.accepting = False
    metrics = [actor.step() for _ in range(20)]
    stopped = [m is None for m in metrics].index(True)
    assert stopped <= 4 and all(m is None for m in metrics[stopped:])
    replay.accepting = True
    assert actor.step() is not None


def test_unacknowledged_rollouts_to_a_remote_replay_are_bounded():
    replay, log = FakeReplay(), []

    class LoggedRemote(FakeRemote):
        def __init__(self, name):
            super().__init__()
            self.name = name

        def send(self, *args):
            super().send(*args)
            log.append(self.name)

        def call_async(self, *args):
            log.append(self.name)
            return super().call_async(*args)

    replay.wants_data, replay.add, replay.end_streams = map(LoggedRemote, ("wants", "add", "end"))
    actor = make_actor(3, replay)
    for _ in range(100):
        actor.step()
    assert len(replay.add.sent) == MAX_IN_FLIGHT + 1
    for _ in range(2):  # two acknowledgements allow two more rollouts
        replay.wants_data.deliver(True)
    for _ in range(100):
        actor.step()
    assert len(replay.add.sent) == MAX_IN_FLIGHT + 3
    assert log[:4] == ["end", "add", "wants", "add"]


def test_restored_actor_continues_and_a_restarted_one_starts_new_episodes():
    assert Actor.restart_fresh
    one = make_actor(3, recreate_every=50)
    for _ in range(17):
        one.step()
    state = one.state_dict()
    two = make_actor(3, recreate_every=50)
    two.load_state_dict(state)
    assert (two.version, two.env_steps, two.new_streams) == (one.version, one.env_steps, False)
    for actor in (one, two):
        torch.manual_seed(0)
        actor.replay.messages.clear()
        for _ in range(20):
            actor.step()
    for a, b in zip(one.replay.messages, two.replay.messages, strict=True):
        assert torch.equal(a.obs["obs"], b.obs["obs"])
        assert torch.equal(a.extras["priority"], b.extras["priority"])
    three = make_actor(4)  # double buffered: its episodes are not saved
    three.load_state_dict(make_actor(4).state_dict())
    assert three.new_streams and three.version == -1


def test_actor_that_joins_a_running_program_plays_other_episodes():
    first, joined = make_actor(3), make_actor(3)
    first.weights.version = -5  # the first request returns version 0
    for actor in (first, joined):
        actor.sampler.collectors[0].env_steps = 7
        actor.step()
    assert [actor.sampler.collectors[0].recreations for actor in (first, joined)] == [0, 6]
    assert joined.sampler.collectors[0].env_steps == 10
