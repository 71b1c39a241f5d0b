"""Paced: a store whose one learner makes so many updates for each vector step that comes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from troop.core.batch import Rollout
from troop.core.flow import ReplayBuffer
from troop.core.role import Metrics
from troop.replay.limiter import Limiter, RateLimited


@dataclass(frozen=True)
class UpdateRatio:
    """How many updates a learner makes for each vector step, by how much it may be missed, in which units."""

    learner: str  # its name
    updates: float  # for each vector step; 0 runs free
    tolerance: float  # vector steps; where that is less than an update, an update
    batch: int  # rows of an update
    envs: int  # rows of a vector step

    def limiter(self, warmup: int) -> Limiter:
        """The same in rows, from `warmup` vector steps on."""
        tolerance = self.batch * max(1.0, self.tolerance * self.updates)
        return Limiter(self.updates * self.batch / self.envs, warmup * self.envs, tolerance)


class RatioLimited(RateLimited):
    """A store on the host and the device of its learner, its readings in updates and vector steps."""

    def __init__(
        self,
        store: ReplayBuffer,
        name: str,
        beat: UpdateRatio,
        warmup: int,
        save: bool = True,
        device: str = "cpu",
    ) -> None:
        super().__init__(store, beat.limiter(warmup), save, name)
        self.beat, self.device = beat, device

    def add(self, piece: Rollout) -> None:
        """Keep the piece, on the learner's device."""
        self.store.add(piece if self.device == "cpu" else _moved(piece, self.device))
        # Counted on the piece as it came, so that no GPU is waited for.
        self.limiter.inserted += int((~piece.closing).sum())

    def gauges(self) -> Metrics:
        """Fill; updates made and vector steps come since the warm-up, and how many updates are wanted."""
        came = max(0, self.limiter.inserted - self.limiter.warmup) / self.beat.envs
        learner = self.beat.learner
        return {
            f"{self.name}/rows": len(self.store),
            f"{self.name}/capacity": self.store.capacity,
            f"{learner}/updates": self.limiter.sampled // self.beat.batch,
            f"{learner}/steps": came,
            f"{learner}/updates_per_step_wanted": self.beat.updates,
        }


def _moved(piece: Rollout, device: str) -> Rollout:
    """The piece on another device; `streams` stay on the host, where stores keep their heads."""
    obs = {name: x.to(device, non_blocking=True) for name, x in piece.obs.items()}
    plain = {
        name: getattr(piece, name).to(device, non_blocking=True)
        for name in ("action", "reward", "terminated", "truncated", "closing")
    }
    return dataclasses.replace(piece, obs=obs, **plain)
