"""Several replays sampled as one: shares, importance weights and priorities."""

import dataclasses

import numpy as np
import pytest
import torch
from history import STEP, History

from troop.core.batch import NStep
from troop.core.remote import RemoteCallable
from troop.replay.limiter import Limiter
from troop.replay.prioritized import PrioritizedReplay, PriorityConfig
from troop.replay.reward_scale import RewardScale
from troop.replay.sharded import Shard, ShardedReplay
from troop.replay.uniform import ReplaySize, UniformReplay


def make_shard(priorities, alpha=1.0, beta=0.5, warmup=1):
    """Return a shard of one stream whose rows have these priorities."""
    history = History(1, 64)
    config = PriorityConfig(alpha=alpha, beta=beta, beta_end=beta, eps=1e-9)
    replay = PrioritizedReplay(history.spec(), NStep(1), ReplaySize(64, 1), 0, priority=config)
    shard = Shard(replay, Limiter(0.0, warmup, 8))
    for priority in [*priorities, 0.0]:  # the window of the last row is not complete
        rollout = history.rollout([0], [STEP])
        shard.add(dataclasses.replace(rollout, extras={"priority": torch.tensor([[priority]])}))
    return shard


class RemoteShard:
    """A shard on another host; replies arrive when the test delivers them."""

    def __init__(self, shard):
        self.shard, self.requests = shard, []
        self.sample_part, self.reprioritize = RemoteSamplePart(self), shard.reprioritize

    def deliver(self):
        """Handle all requests, as the peer does when it receives them."""
        for reply in self.requests:
            reply.handle()
        self.requests = []


class RemoteSamplePart(RemoteCallable):
    def __init__(self, remote):
        self.remote, self.rows = remote, []

    def call_async(self, rows):
        self.rows.append(rows)
        reply = PartReply(self.remote.shard, rows)
        self.remote.requests.append(reply)
        return reply


class PartReply:
    def __init__(self, shard, rows):
        self.handle = lambda: setattr(self, "reply", [shard.sample_part(rows)])
        self.reply = []

    def ready(self):
        return bool(self.reply)

    def result(self):
        return self.reply[0]


def test_rows_are_sampled_in_proportion_to_the_total_priority_of_each_shard():
    replay = ShardedReplay([make_shard([1.0] * 30), make_shard([3.0] * 10 + [6.0] * 10)], 1, 0)
    counts = np.zeros(2)
    replay.sample(64)  # the first batch reports the total priorities
    for _ in range(400):
        batch = replay.sample(64)
        counts += [int((batch.index % 2 == shard).sum()) for shard in range(2)]
    assert np.allclose(counts / counts.sum(), [30 / 120, 90 / 120], atol=0.005)


def test_importance_weights_are_those_of_a_single_replay():
    replay = ShardedReplay([make_shard([1.0] * 30), make_shard([3.0] * 10 + [6.0] * 10)], 1, 0)
    replay.sample(64)
    batch = replay.sample(200)
    shard, row = batch.index % 2, batch.index // 2
    priority = torch.where(shard == 0, 1.0, torch.where(row < 10, 3.0, 6.0))
    assert torch.allclose(batch.weight, priority**-0.5, atol=1e-5) and batch.weight.max() == 1.0


def test_priorities_are_sent_to_the_shard_of_their_row():
    shards = [make_shard([1.0] * 30), make_shard([1.0] * 20)]
    replay = ShardedReplay(shards, 1, 0)
    batch = replay.sample(300)
    replay.reprioritize(batch.index, torch.where(batch.index % 2 == 0, 5.0, 7.0))
    for i, (shard, value) in enumerate(zip(shards, (5.0, 7.0), strict=True)):
        leaves = shard.replay.tree.get(np.arange(64))
        sampled = np.unique((batch.index[batch.index % 2 == i] // 2).numpy())
        assert np.allclose(leaves[sampled], value, atol=1e-4)
        assert set(np.flatnonzero(leaves > 1.5)) == set(sampled)


def test_batch_waits_for_a_shard_without_rows_and_keeps_the_other_parts():
    late, first = make_shard([], warmup=5), make_shard([1.0] * 30)
    replay = ShardedReplay([first, late], 1, 0)
    assert all(replay.sample(32) is None for _ in range(5))
    assert first.limiter.sampled == 16 and late.limiter.sampled == 0
    late.replay, late.limiter.inserted = make_shard([1.0] * 8).replay, 9
    batch = replay.sample(32)
    assert len(batch) == 32 and first.limiter.sampled == 16 and late.limiter.sampled == 16


def test_remote_shards_are_requested_ahead_and_again_after_a_none_reply():
    late = make_shard([], warmup=5)
    remotes = [RemoteShard(make_shard([1.0] * 30)), RemoteShard(late)]
    replay = ShardedReplay(remotes, prefetch=2, seed=0)
    for _ in range(3):  # two batches are in flight; nothing is sent twice
        assert replay.sample(32) is None
        assert [len(remote.sample_part.rows) for remote in remotes] == [2, 2]
    for remote in remotes:
        remote.deliver()
    assert replay.sample(32) is None
    # Only the oldest batch is polled: the late shard replied None, so its part is requested again.
    assert [len(remote.sample_part.rows) for remote in remotes] == [2, 3]
    assert remotes[1].sample_part.rows[0] == remotes[1].sample_part.rows[2]
    late.replay, late.limiter.inserted = make_shard([1.0] * 8).replay, 9
    remotes[1].deliver()
    assert len(replay.sample(32)) == 32 and remotes[0].shard.limiter.sampled == 32
    assert replay.sample(32) is None  # the second batch; its late part is requested again too
    assert [len(remote.sample_part.rows) for remote in remotes] == [3, 5]


def scaled_shard(rewards, prioritized=True):
    """Return a shard of one stream with these rewards, scaled by their returns."""
    history, experience, size = History(1, 64), NStep(1, 0.9, scale_rewards_to=5.0), ReplaySize(64, 1)
    replay = (
        PrioritizedReplay(history.spec(), experience, size, 0, priority=PriorityConfig(alpha=0.6))
        if prioritized
        else UniformReplay(history.spec(), experience, size, 0)
    )
    shard = Shard(replay, Limiter(0.0, 1, 8))
    for reward in rewards:
        rollout = history.rollout([0], [STEP])
        shard.add(dataclasses.replace(rollout, reward=torch.tensor([[reward]])))
    return shard


@pytest.mark.parametrize("prioritized", [False, True])
def test_rewards_of_all_shards_have_one_divisor_that_of_a_single_replay(prioritized):
    rewards = [[1.0] * 30, [1.0, 90.0, -40.0] * 10]
    shards = [scaled_shard(x, prioritized) for x in rewards]
    own_divisors = [shard.replay.reward_scale.value.item() for shard in shards]
    assert own_divisors[1] > 10 * own_divisors[0]
    replay = ShardedReplay(shards, 1, 0, scale_rewards_to=5.0)
    single = RewardScale(NStep(1, 0.9, scale_rewards_to=5.0), 2)
    for pair in zip(*rewards, strict=True):
        rollout = History(2, 8).rollout([0, 1], [STEP, STEP])
        single.add(dataclasses.replace(rollout, reward=torch.tensor([pair])))
    values = torch.tensor(sorted({x for row in rewards for x in row})) / single.value
    for _ in range(3):
        batch = replay.sample(200)
        assert torch.allclose(batch.reward.unique(), values, rtol=1e-5)


def test_divisor_includes_a_shard_that_has_no_rows_in_the_batch():
    shards = [scaled_shard([1.0] * 30), scaled_shard([100.0] * 30)]
    replay = ShardedReplay(shards, 1, 0, scale_rewards_to=5.0)
    divisor = 1 / replay.sample(64).reward.min()
    replay.total_priority = np.array([1.0, 0.0])
    assert torch.allclose(replay.sample(64).reward, 1 / divisor)


def test_sample_of_one_shard_alone_is_scaled_by_its_own_returns():
    shard = scaled_shard([1.0] * 30)
    assert torch.allclose(shard.sample(16).reward, 1 / shard.replay.reward_scale.value)
    assert shard.sample_part(16).batch.reward.eq(1).all() and shard.limiter.sampled == 32
