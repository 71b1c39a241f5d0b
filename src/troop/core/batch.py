"""C2 Batch: `reward + discount * V(next_obs)` is the whole Bellman target; no algorithm sees a done flag."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from troop.core.env import Obs


@dataclass(frozen=True, slots=True)
class Transition:
    """[B] rows; `reward` is the discounted sum of k steps, `discount` gamma^k, or 0 if the world ended."""

    obs: Obs
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_obs: Obs
    weight: Tensor | None = None  # importance weight; None means ones
    index: Tensor | None = None  # place in the replay; None if nobody will reprioritize

    def __len__(self) -> int:
        """Rows."""
        return int(self.reward.shape[0])


@dataclass(frozen=True, slots=True)
class Rollout:
    """A piece of experience as it happened: time-ordered rows [T, B] of B env streams.

    Where `closing` is set the row is no transition: it only carries the observation on which the
    previous row of its stream ended (a final observation, or the last one before a forced reset).
    """

    streams: Tensor  # [B] int64, which env streams these columns belong to
    obs: Obs  # [T, B, ...]
    action: Tensor  # [T, B, ...]
    reward: Tensor  # [T, B]
    terminated: Tensor  # [T, B] bool
    truncated: Tensor  # [T, B] bool
    closing: Tensor  # [T, B] bool
    priority: Tensor | None = None  # [T, B] initial priority of each row; None: the store's own choice

    def cpu(self) -> Rollout:
        """The same on the host; itself if that is where it is."""
        if self.reward.is_cpu:
            return self
        plain = ("action", "reward", "terminated", "truncated", "closing")
        moved = {name: getattr(self, name).cpu() for name in plain}
        priority = None if self.priority is None else self.priority.cpu()
        obs = {name: x.cpu() for name, x in self.obs.items()}
        return Rollout(self.streams, obs, **moved, priority=priority)


@dataclass(frozen=True)
class NStep:
    """An algorithm wants Transitions over `n` steps, discounted by `gamma`."""

    n: int = 1
    gamma: float = 0.99
    bootstrap_on_truncation: bool = True  # False: a time limit counts as the world's end
    scale_rewards_to: float | None = None  # divide rewards so that returns stay within this


@dataclass(frozen=True)
class TrajectorySpec:
    """An algorithm wants Trajectories of `length` steps, discounted by `gamma`."""

    length: int
    gamma: float = 0.99


Experience = NStep | TrajectorySpec
