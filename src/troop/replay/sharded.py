"""Shards: several replays that are drawn from as if they were one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from troop.core.batch import Transition
from troop.core.remote import Future, call_async, send
from troop.replay.limiter import RateLimited
from troop.replay.prioritized import PrioritizedReplay


@dataclass(frozen=True, slots=True)
class ShardSample:
    """A shard's share of a batch, and what is needed to put it beside those of others."""

    batch: Transition
    mass: float  # of all rows of the shard
    least: float  # the chance that has weight 1, as mass
    beta: float


class Shard(RateLimited):
    """A store behind a Limiter that is one of several."""

    def part(self, rows: int) -> ShardSample | None:
        """A share of a batch, or None while there is none to be had."""
        batch = self.sample(rows)
        if batch is None:
            return None
        if isinstance(self.store, PrioritizedReplay):
            return ShardSample(batch, self.store.tree.total, self.store.least_drawn, self.store.beta)
        return ShardSample(batch, float(len(self.store)), 1.0, 0.0)


class PendingSample:
    """A share that was asked for; asked again as long as the shard has none."""

    def __init__(self, place: int, shard: Shard, rows: int) -> None:
        self.place, self.shard, self.rows = place, shard, rows
        self.part: ShardSample | None = None
        self._answer: Future[ShardSample | None] = call_async(shard.part, rows)

    def there(self) -> bool:
        """Whether the share has come."""
        if self.part is None and self._answer.ready():
            self.part = self._answer.result()
            if self.part is None:
                self._answer = call_async(self.shard.part, self.rows)
        return self.part is not None


class ShardedReplay:
    """A Source over shards: each gives rows in proportion to its mass, weights are those of one replay."""

    def __init__(self, shards: Sequence[Shard], ahead: int, seed: int) -> None:
        self.shards, self.ahead = shards, ahead
        self.mass = np.ones(len(shards))
        self.random = np.random.default_rng(seed)
        self._asked: deque[list[PendingSample]] = deque()

    def sample(self, rows: int) -> Transition | None:
        """A batch put together from all shards, or None while a share is missing; never blocks."""
        while len(self._asked) < self.ahead:
            self._asked.append(self._ask(rows))
        shares = self._asked[0]
        if not all([asked.there() for asked in shares]):
            return None
        self._asked.popleft()
        for asked in shares:
            assert asked.part is not None
            self.mass[asked.place] = asked.part.mass
        return self._merged(shares)

    def _ask(self, rows: int) -> list[PendingSample]:
        """Shares in proportion to the masses as last heard: each is right to within one row."""
        ends = np.cumsum(self.mass) / self.mass.sum() * rows
        marks = np.floor(ends + self.random.random()).astype(int)
        marks[-1] = rows
        counts = np.diff(np.clip(marks, 0, rows), prepend=0)
        return [PendingSample(i, self.shards[i], int(n)) for i, n in enumerate(counts) if n]

    def _merged(self, shares: list[PendingSample]) -> Transition:
        parts = [asked.part for asked in shares if asked.part is not None]
        batches = [part.batch for part in parts]
        least = min(part.least for part in parts)
        weight = index = None
        if batches[0].index is not None:
            weights = [_of(part.batch.weight) * (part.least / least) ** -part.beta for part in parts]
            weight = torch.cat(weights)
            numbers = [
                _of(b.index) * len(self.shards) + s.place for b, s in zip(batches, shares, strict=True)
            ]
            index = torch.cat(numbers)
        obs, next_obs = (
            {name: torch.cat([getattr(b, which)[name] for b in batches]) for name in batches[0].obs}
            for which in ("obs", "next_obs")
        )
        plain = {
            name: torch.cat([getattr(b, name) for b in batches]) for name in ("action", "reward", "discount")
        }
        return Transition(obs=obs, next_obs=next_obs, weight=weight, index=index, **plain)

    def reprioritize(self, index: Tensor, priority: Tensor) -> None:
        """Tell each shard of its own rows."""
        for place, shard in enumerate(self.shards):
            own = index % len(self.shards) == place
            if own.any():
                send(shard.reprioritize, index[own] // len(self.shards), priority[own])


def _of(x: Tensor | None) -> Tensor:
    assert x is not None
    return x
