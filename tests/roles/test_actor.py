from collections import Counter

import pytest
import torch

from troop.algorithms.dqn import DQNConfig
from troop.core.remote import RemoteCallable
from troop.envs import Toy
from troop.roles.actor import Actor
from troop.roles.replay_sender import MAX_IN_FLIGHT
from troop.systems.components import ActorConfig, make_sampler

CFG = DQNConfig(hidden=(8,), n_step=2)


class ReplayBuffer:
    """Remembers everything in order; wants data as told."""

    def __init__(self, wants=True):
        self.wants, self.heard = wants, []

    def wants_data(self):
        return True if self.wants else None

    def add(self, piece):
        self.heard.append(piece)

    def end_streams(self, streams=None):
        self.heard.append(streams)


class Weights:
    """A new version every look, counted."""

    def __init__(self, policy, ready=True):
        self.version, self.policy, self.looks, self.ready = 0, policy, 0, ready

    def latest(self, after):
        self.looks += 1
        self.version += 5
        return (self.version, self.policy.state_dict()) if self.ready else None


def actor(envs=4, store=None, sync=16, weights=True, **plan):
    torch.manual_seed(1)
    env = Toy("Clock", envs, limit=6, discrete=True, autoreset="next_step")
    rates = tuple(0.1 * i for i in range(envs))
    made = make_sampler(
        CFG,
        env,
        ActorConfig(
            **({"seed": 3, "first_stream": 8, "chunk_length": 3, "actor_priorities": True} | plan),
            exploration=rates,
        ),
    )
    return Actor(made, store or ReplayBuffer(), Weights(CFG.policy(env.spec), weights), sync)


@pytest.mark.parametrize("envs, collectors", [(1, 1), (2, 2), (3, 1), (4, 2)])
def test_an_even_number_of_envs_is_stepped_in_two_halves(envs, collectors):
    made = actor(envs)
    assert len(made.sampler.collectors) == collectors
    explored = torch.cat([c.explore for c in made.sampler.collectors])
    assert torch.allclose(explored, torch.arange(envs) * 0.1)
    assert torch.cat(made.sampler.streams()).tolist() == list(range(8, 8 + envs))


def test_a_deterministic_one_is_not_halved():
    assert (
        len(actor(4, double_buffered=False).sampler.collectors)
        == len(actor(4, recreate_every=9).sampler.collectors)
        == 1
    )


def test_it_does_not_act_before_there_are_weights():
    made = actor(weights=False)
    assert [made.step() for _ in range(5)] == [None] * 5 and made.weights.looks == 5
    made.weights.ready = True
    assert made.step()["count/env_steps"] == 2


def test_weights_are_looked_for_on_its_own_schedule_and_the_lag_is_told():
    made = actor(envs=3, sync=12)
    said = [made.step() for _ in range(21)]
    acted = sum(s["count/env_steps"] for s in said)
    assert acted == 54 and made.weights.looks == 1 + (acted - 1) // 12  # resets of rows are no env steps
    assert [s["policy/lag"] for s in said if "policy/lag" in s] == [5] * (made.weights.looks - 1)
    assert made.version == made.weights.version
    assert float(next(s["actor/explore"] for s in said if "actor/explore" in s)) == pytest.approx(0.1)


def test_weights_that_went_back_to_a_checkpoint_are_taken_and_no_lag_is_below_zero():
    made = actor(envs=3, sync=3)
    for _ in range(4):
        made.step()
    made.weights.version = 0
    said = [made.step() for _ in range(2)]
    assert made.version == made.weights.version <= 10
    assert min(s["policy/lag"] for s in said if "policy/lag" in s) == 0


def test_streams_are_cut_once_before_the_first_piece():
    made = actor()
    for _ in range(40):
        made.step()
    first, second, *pieces = made.store.heard
    assert first.tolist() == [8, 9] and second.tolist() == [10, 11]
    assert len(pieces) > 8 and all(piece.priority is not None for piece in pieces)


def test_it_stops_while_the_store_has_enough_and_goes_on_after():
    store = ReplayBuffer()
    made = actor(3, store)
    for _ in range(20):
        made.step()
    store.wants = False
    said = [made.step() for _ in range(20)]
    stopped = [s is None for s in said].index(True)
    assert stopped <= 4 and all(s is None for s in said[stopped:])
    store.wants = True
    assert made.step() is not None


class Slow(RemoteCallable):
    """A store elsewhere that answers only when let."""

    def __init__(self, log, name):
        self.log, self.name, self.done = log, name, 0

    def call_async(self, *args):
        self.log.append("asked")
        mine = sum(word == "asked" for word in self.log)
        outer = self

        class Reply:
            def ready(self):
                return outer.done >= mine

            def result(self):
                return True

        return Reply()

    def send(self, *args):
        self.log.append(self.name)


def test_pieces_under_way_are_bounded():
    log = []
    store = ReplayBuffer()
    store.wants_data, store.add, store.end_streams = Slow(log, "?"), Slow(log, "add"), Slow(log, "cut")
    made = actor(3, store)
    for _ in range(100):
        made.step()
    assert Counter(log)["add"] == MAX_IN_FLIGHT + 1
    store.wants_data.done = 2  # two answers come: two more pieces may go
    for _ in range(100):
        made.step()
    assert Counter(log)["add"] == MAX_IN_FLIGHT + 3
    assert log[:4] == ["cut", "add", "asked", "add"]


def test_after_a_death_it_starts_anew_and_a_resume_goes_on():
    assert Actor.restart_fresh
    one = actor(3, recreate_every=50)
    for _ in range(17):
        one.step()
    state = one.state_dict()
    two = actor(3, recreate_every=50)
    two.load_state_dict(state)
    assert (two.version, two.env_steps, two.fresh) == (one.version, one.env_steps, False)
    for made in (one, two):
        torch.manual_seed(0)
        made.store.heard.clear()
        for _ in range(20):
            made.step()
    for a, b in zip(one.store.heard, two.store.heard, strict=True):
        assert torch.equal(a.obs["obs"], b.obs["obs"]) and torch.equal(a.priority, b.priority)
    three = actor(4)  # halves in turn: nothing of their episodes is kept
    three.load_state_dict(actor(4).state_dict())
    assert three.fresh and three.version == -1


def test_one_that_joins_a_run_under_way_sees_other_episodes():
    begun, joined = actor(3), actor(3)
    begun.weights.version = -5  # the first look finds version 0
    for made in (begun, joined):
        made.sampler.collectors[0].env_steps = 7
        made.step()
    assert [made.sampler.collectors[0].recreations for made in (begun, joined)] == [0, 6]
    assert joined.sampler.collectors[0].env_steps == 10
