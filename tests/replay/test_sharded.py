"""Several replays drawn from as one: shares, weights and priorities."""

import numpy as np
import torch
from history import STEP, History

from troop.core.batch import NStep
from troop.replay.limiter import Limiter
from troop.replay.prioritized import PrioritizedReplay, PriorityConfig
from troop.replay.sharded import Shard, ShardedReplay
from troop.replay.uniform import ReplaySize


def shard(priorities, alpha=1.0, beta=0.5, warmup=1):
    """A replay of one stream whose rows have these priorities."""
    history = History(1, 64)
    how = PriorityConfig(alpha=alpha, beta=beta, beta_end=beta, eps=1e-9)
    store = PrioritizedReplay(history.spec(), NStep(1), ReplaySize(64, 1), 0, priority=how)
    made = Shard(store, Limiter(0.0, warmup, 8))
    for priority in [*priorities, 0.0]:  # the last row's window is not complete
        piece = history.piece([0], [STEP])
        made.add(
            type(piece)(
                **{k: getattr(piece, k) for k in piece.__slots__[:7]}, priority=torch.tensor([[priority]])
            )
        )
    return made


def test_rows_are_drawn_in_proportion_to_the_mass_of_all():
    shards = ShardedReplay([shard([1.0] * 30), shard([3.0] * 10 + [6.0] * 10)], 1, 0)
    counts = np.zeros(2)
    shards.sample(64)  # learns the masses
    for _ in range(400):
        batch = shards.sample(64)
        counts += [int((batch.index % 2 == place).sum()) for place in range(2)]
    assert np.allclose(counts / counts.sum(), [30 / 120, 90 / 120], atol=0.005)


def test_weights_are_those_of_one_replay():
    shards = ShardedReplay([shard([1.0] * 30), shard([3.0] * 10 + [6.0] * 10)], 1, 0)
    shards.sample(64)
    batch = shards.sample(200)
    place, number = batch.index % 2, batch.index // 2
    priority = torch.where(place == 0, 1.0, torch.where(number < 10, 3.0, 6.0))
    assert torch.allclose(batch.weight, priority**-0.5, atol=1e-5) and batch.weight.max() == 1.0


def test_priorities_go_to_the_shard_they_belong_to():
    parts = [shard([1.0] * 30), shard([1.0] * 20)]
    shards = ShardedReplay(parts, 1, 0)
    batch = shards.sample(300)
    shards.reprioritize(batch.index, torch.where(batch.index % 2 == 0, 5.0, 7.0))
    for place, (part, value) in enumerate(zip(parts, (5.0, 7.0), strict=True)):
        leaves = part.store.tree.get(np.arange(64))
        drawn = np.unique((batch.index[batch.index % 2 == place] // 2).numpy())
        assert np.allclose(leaves[drawn], value, atol=1e-4)
        assert set(np.flatnonzero(leaves > 1.5)) == set(drawn)


def test_a_shard_without_rows_is_waited_for_and_no_share_is_lost():
    late = shard([], warmup=5)
    first = shard([1.0] * 30)
    shards = ShardedReplay([first, late], 1, 0)
    assert all(shards.sample(32) is None for _ in range(5))
    assert first.limiter.sampled == 16 and late.limiter.sampled == 0
    for part in (shard([1.0] * 8),):
        late.store, late.limiter.inserted = part.store, 9
    batch = shards.sample(32)
    assert len(batch) == 32 and first.limiter.sampled == 16 and late.limiter.sampled == 16
