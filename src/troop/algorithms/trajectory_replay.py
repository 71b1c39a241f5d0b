"""TrajectoryReplay: the newest trajectories of a learner, for auxiliary losses on past experience."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from troop.core.batch import Trajectory
from troop.core.env import Obs
from troop.nets.auxiliary_heads import FRAMES


class RewardSample(NamedTuple):
    """Three consecutive observations and the class of the reward that follows the last."""

    obs: Obs  # [N, 3, ...]
    label: Tensor  # [N] int64: 0 zero, 1 positive, 2 negative


class Candidates(NamedTuple):
    """Steps of a trajectory whose reward can be predicted, as t * B + b."""

    zero: Tensor
    nonzero: Tensor


class TrajectoryReplay:
    """A FIFO of trajectories. `add` copies: a system may reuse the memory of its batches."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity  # trajectories
        self.trajectories: list[Trajectory] = []
        self._candidates: list[Candidates] = []  # of each trajectory

    def add(self, trajectory: Trajectory) -> None:
        """Append a copy of the trajectory; drop the oldest one if there are too many."""
        fields = {each.name: getattr(trajectory, each.name) for each in dataclasses.fields(trajectory)}
        self.trajectories.append(Trajectory(**pytree.tree_map_only(Tensor, torch.clone, fields)))
        self._candidates.append(reward_candidates(trajectory))
        if len(self.trajectories) > self.capacity:
            del self.trajectories[0], self._candidates[0]

    def sample(self) -> Trajectory:
        """Return one of the trajectories, each with the same probability."""
        return self.trajectories[int(torch.randint(len(self.trajectories), ()))]

    def sample_rewards(self, rows: int) -> RewardSample | None:
        """Sample steps whose reward is zero and steps whose reward is not with probability 1/2 each.

        If there is only one kind, all rows are of it; None if there is no step to predict.
        """
        zero, nonzero = ([getattr(each, name) for each in self._candidates] for name in Candidates._fields)
        counts = [sum(map(len, kind)) for kind in (zero, nonzero)]
        if not sum(counts):
            return None
        chance = 0.5 if all(counts) else float(counts[1] > 0)
        is_nonzero = torch.rand(rows) < chance
        picks = [_pick(nonzero if each else zero) for each in is_nonzero.tolist()]
        names = self.trajectories[0].obs
        obs = {name: torch.stack([self._frames(name, *pick) for pick in picks]) for name in names}
        reward = torch.stack([self.trajectories[slot].reward.view(-1)[index] for slot, index in picks])
        return RewardSample(obs, torch.where(reward < 0, 2, (reward > 0).long()))

    def _frames(self, name: str, slot: int, index: int) -> Tensor:
        t, b = divmod(index, len(self.trajectories[slot]))
        return self.trajectories[slot].obs[name][t - FRAMES + 1 : t + 1, b]

    def state_dict(self) -> dict[str, Any]:
        """Return the fields of all trajectories."""
        names = [each.name for each in dataclasses.fields(Trajectory)]
        return {"trajectories": [{name: getattr(each, name) for name in names} for each in self.trajectories]}

    def load_state_dict(self, state: dict[str, Any], device: str = "cpu") -> None:
        """Restore the newest trajectories of the result of `state_dict`, as many as fit."""
        self.trajectories, self._candidates = [], []
        for fields in state["trajectories"]:
            self.add(Trajectory(**fields).to(device))


def reward_candidates(trajectory: Trajectory) -> Candidates:
    """Return the steps before which the trajectory has two further observations of the same episode."""
    started = trajectory.started[:-1]
    usable = trajectory.valid.clone()
    usable[: FRAMES - 1] = False
    for back in range(FRAMES - 1):
        usable[back:] &= ~started[: len(started) - back]
    nonzero = usable & (trajectory.reward != 0)
    return Candidates(*(rows.view(-1).nonzero().squeeze(1).cpu() for rows in (usable & ~nonzero, nonzero)))


def _pick(kind: list[Tensor]) -> tuple[int, int]:
    """Return a trajectory and a step of it, each step of all trajectories with the same probability."""
    number = int(torch.randint(sum(map(len, kind)), ()))
    for slot, steps in enumerate(kind):
        if number < len(steps):
            return slot, int(steps[number])
        number -= len(steps)
    raise AssertionError("number is below the sum of all lengths")
