"""CircularBuffer: the newest batches of a source, each returned several times (Luo et al. 2020, IMPACT)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from troop.core.flow import Source
from troop.core.remote import Prefetch

Batch = TypeVar("Batch")


@dataclass
class BufferedBatch(Generic[Batch]):
    """A batch and how often it may still be returned."""

    batch: Batch
    uses_left: int


class CircularBuffer(Generic[Batch]):
    """Holds up to `size` batches of `source` and returns a random one, each at most `replay_times` times.

    Every call takes one new batch of the source if there is one; the oldest batch makes room for it, also if
    it was never returned. The batches are part of the learner that samples them: they are neither copied nor
    sent again, and a restarted learner begins with an empty buffer.
    """

    def __init__(
        self, source: Source[Batch], size: int, replay_times: int, seed: int, prefetch: int = 1
    ) -> None:
        self.size, self.replay_times = size, replay_times
        self._arriving = Prefetch(source.sample, depth=prefetch)
        self._slots: list[BufferedBatch[Batch]] = []  # oldest first
        self._generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        """Number of batches that can be returned."""
        return len(self._slots)

    def sample(self, rows: int) -> Batch | None:
        """Return one of the batches, each with the same probability; None if there is none."""
        self._arriving.fill(rows)
        batch = self._arriving.poll()
        self._arriving.fill(rows)
        if batch is not None:
            self._slots = [*self._slots, BufferedBatch(batch, self.replay_times)][-self.size :]
        if not self._slots:
            return None
        chosen = int(torch.randint(len(self._slots), (), generator=self._generator))
        slot = self._slots[chosen]
        slot.uses_left -= 1
        if not slot.uses_left:
            del self._slots[chosen]
        return slot.batch
