"""ShardedReplay: several replays on different hosts, sampled as one."""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from troop.core.batch import Trajectory, Transition, join_trajectories
from troop.core.peers import Moments
from troop.core.remote import Prefetch, send
from troop.replay.limiter import RateLimited
from troop.replay.prioritized import PrioritizedReplay
from troop.replay.reward_scale import reward_divisor
from troop.replay.sequences import SequenceReplay
from troop.replay.uniform import UniformReplay


@dataclass(frozen=True, slots=True)
class ShardSample:
    """A shard's part of a batch, and what is needed to merge it with the parts of other shards."""

    batch: Transition | Trajectory  # with the rewards of the env
    total_priority: float  # of all rows of the shard
    min_priority: float  # priority of the row with weight 1
    beta: float
    returns: Moments | None  # statistics that scale the rewards


class Shard(RateLimited):
    """One of several rate-limited replays."""

    def sample_part(self, rows: int) -> ShardSample | None:
        """Return `rows` rows of a batch; None while they may not be sampled."""
        replay = self.replay
        if isinstance(replay, SequenceReplay):
            sequences = self._limited(replay.sample_unscaled, rows)
            if sequences is None:
                return None
            returns = None if replay.reward_scale is None else replay.reward_scale.moments
            return ShardSample(sequences, replay.tree.total, replay.min_priority, replay.beta, returns)
        assert isinstance(replay, UniformReplay)
        batch = self._limited(replay.sample_unscaled, rows)
        if batch is None:
            return None
        returns = None if replay.reward_scale is None else replay.reward_scale.moments
        if isinstance(replay, PrioritizedReplay):
            return ShardSample(batch, replay.tree.total, replay.min_priority, replay.beta, returns)
        return ShardSample(batch, float(len(replay)), 1.0, 0.0, returns)


class PendingSample:
    """A requested part of a batch; requested again while the shard returns None."""

    def __init__(self, shard_index: int, shard: Shard, rows: int) -> None:
        self.shard_index, self.rows = shard_index, rows
        self.sample: ShardSample | None = None
        self._requests = Prefetch(shard.sample_part)
        self._requests.request(rows)

    def arrived(self) -> bool:
        """Return whether the part has arrived."""
        if self.sample is None:
            self.sample = self._requests.poll()
            if self.sample is None:
                self._requests.fill(self.rows)
        return self.sample is not None


class ShardedReplay:
    """A Source over shards: each contributes rows in proportion to its total priority.

    Importance weights and the divisor of rewards are those of a single replay.
    """

    def __init__(
        self, shards: Sequence[Shard], prefetch: int, seed: int, scale_rewards_to: float | None = None
    ) -> None:
        self.shards, self.prefetch, self.scale_rewards_to = shards, prefetch, scale_rewards_to
        self.returns: dict[int, Moments] = {}  # by shard, as of its newest sample
        self.total_priority = np.ones(len(shards))  # of each shard, as of its newest sample
        self.random = np.random.default_rng(seed)
        self._pending: deque[list[PendingSample]] = deque()  # the parts of each requested batch

    def sample(self, rows: int) -> Any:  # noqa: ANN401 - a Transition, or a Trajectory of sequences
        """Return a batch merged from all shards; None while a part is missing. Never blocks."""
        while len(self._pending) < self.prefetch:
            self._pending.append(self._request(rows))
        parts = self._pending[0]
        if not all([part.arrived() for part in parts]):
            return None
        self._pending.popleft()
        samples = {part.shard_index: part.sample for part in parts if part.sample is not None}
        for shard, sample in samples.items():
            self.total_priority[shard] = sample.total_priority
            if sample.returns is not None:
                self.returns[shard] = sample.returns
        return self._merge(samples)

    def _request(self, rows: int) -> list[PendingSample]:
        """Request rows of each shard in proportion to its total priority, rounded to whole rows at random."""
        ends = np.cumsum(self.total_priority) / self.total_priority.sum() * rows
        boundaries = np.floor(ends + self.random.random()).astype(int)
        boundaries[-1] = rows
        counts = np.diff(np.clip(boundaries, 0, rows), prepend=0)
        return [PendingSample(i, self.shards[i], int(n)) for i, n in enumerate(counts) if n]

    def _merge(self, samples: dict[int, ShardSample]) -> Transition | Trajectory:
        min_priority = min(sample.min_priority for sample in samples.values())
        weights, indices = [], []
        for shard, sample in samples.items():
            weight, index = sample.batch.weight, sample.batch.index
            if weight is not None and index is not None:
                weights.append(weight * (sample.min_priority / min_priority) ** -sample.beta)
                indices.append(index * len(self.shards) + shard)
        weight_of_all = torch.cat(weights) if weights else None
        index_of_all = torch.cat(indices) if indices else None
        sequences = [s.batch for s in samples.values() if isinstance(s.batch, Trajectory)]
        if sequences:
            joined = join_trajectories(sequences)
            reward = self._scaled(joined.reward)
            return dataclasses.replace(joined, reward=reward, weight=weight_of_all, index=index_of_all)
        batches = [s.batch for s in samples.values() if isinstance(s.batch, Transition)]
        obs, next_obs = (
            {name: torch.cat([getattr(b, field)[name] for b in batches]) for name in batches[0].obs}
            for field in ("obs", "next_obs")
        )
        return Transition(
            obs,
            torch.cat([b.action for b in batches]),
            self._scaled(torch.cat([b.reward for b in batches])),
            torch.cat([b.discount for b in batches]),
            next_obs,
            weight_of_all,
            index_of_all,
        )

    def _scaled(self, reward: Tensor) -> Tensor:
        """Divide the rewards by the divisor of the returns of all shards."""
        if self.scale_rewards_to is None:
            return reward
        returns = functools.reduce(Moments.merge, self.returns.values())
        return reward / reward_divisor(returns, self.scale_rewards_to)

    def reprioritize(self, index: Tensor, priority: Tensor) -> None:
        """Send each shard the priorities of its rows."""
        for i, shard in enumerate(self.shards):
            own = index % len(self.shards) == i
            if own.any():
                send(shard.reprioritize, index[own] // len(self.shards), priority[own])
