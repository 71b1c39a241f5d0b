"""Batches: what recorders send (`Rollout`) and what algorithms learn from (`Transition`).

`reward + discount * V(next_obs)` is the complete Bellman target: algorithms do not see termination flags.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from troop.core.env import Obs

Batch = TypeVar("Batch", "Transition", "Rollout")


@dataclass(frozen=True, slots=True)
class Transition:
    """[B] rows; `reward` is the discounted sum of k rewards, `discount` is gamma^k, or 0 if terminated."""

    obs: Obs
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_obs: Obs
    weight: Tensor | None = None  # importance weight; None means ones
    index: Tensor | None = None  # row ids for `Source.reprioritize`, on the host; None without priorities

    def __len__(self) -> int:
        """Number of rows."""
        return int(self.reward.shape[0])

    def to(self, device: torch.device | str) -> Transition:
        """Return the batch on `device`, itself if both are the CPU; `index` stays on the host."""
        return _move(self, torch.device(device), host_field="index")


@dataclass(frozen=True, slots=True)
class Rollout:
    """Consecutive time steps of B env streams: time-ordered rows [T, B].

    Where `closing` is set the row is not a transition: it only holds the observation on which the previous
    row of its stream ended (a final observation, or the last one before a forced reset).
    """

    streams: Tensor  # [B] int64 on the host: the stream of each column
    obs: Obs  # [T, B, ...]
    action: Tensor  # [T, B, ...]
    reward: Tensor  # [T, B]
    terminated: Tensor  # [T, B] bool
    truncated: Tensor  # [T, B] bool
    closing: Tensor  # [T, B] bool
    extras: dict[str, Tensor] = field(default_factory=dict)
    """Further values of each row, [T, B, ...]. "priority" is its initial priority; the replay chooses one
    for rollouts without it."""

    def to(self, device: torch.device | str) -> Rollout:
        """Return the rollout on `device`, itself if both are the CPU; `streams` stay on the host."""
        return _move(self, torch.device(device), host_field="streams")

    def cpu(self) -> Rollout:
        """Return the rollout on the host, itself if it is there."""
        return self.to("cpu")


def _move(batch: Batch, device: torch.device, host_field: str) -> Batch:
    """Return `batch` with the tensors of all fields but `host_field` on `device`."""
    on_host = device.type == "cpu"
    if on_host and batch.reward.is_cpu:
        return batch
    names = [f.name for f in dataclasses.fields(batch) if f.name != host_field]
    moved = pytree.tree_map_only(
        Tensor,
        lambda x: x.to(device, non_blocking=not on_host),  # a copy to the host must be complete when used
        {name: getattr(batch, name) for name in names},
    )
    return dataclasses.replace(batch, **moved)


@dataclass(frozen=True)
class NStep:
    """Batch specification: transitions over `n` steps, discounted by `gamma`."""

    n: int = 1
    gamma: float = 0.99
    bootstrap_on_truncation: bool = True  # False: a time limit counts as a termination
    scale_rewards_to: float | None = None  # divide rewards so that discounted returns stay within this


@dataclass(frozen=True)
class TrajectorySpec:
    """Batch specification: trajectories of `length` steps, discounted by `gamma`."""

    length: int
    gamma: float = 0.99


Experience = NStep | TrajectorySpec
