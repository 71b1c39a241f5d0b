"""NStepSampler: n-step transitions from the slots of their first rows."""

from __future__ import annotations

import torch
from torch import Tensor

from troop.core.batch import NStep, Transition
from troop.core.env import Obs
from troop.replay.storage import kernels, kernels_torch
from troop.replay.storage.ring import ACTION, RingStorage


class NStepSampler:
    """Computes the transitions of an NStep specification from the rows of a storage."""

    def __init__(self, storage: RingStorage, experience: NStep) -> None:
        self.storage, self.experience = storage, experience
        # Powers and sums in double precision: each is rounded once.
        self.gamma_powers = experience.gamma ** torch.arange(
            experience.n + 1, dtype=torch.float64, device=storage.device
        )
        self.final = kernels.TERMINATED  # flags of rows after which nothing is bootstrapped
        if not experience.bootstrap_on_truncation:
            self.final |= kernels.TRUNCATED

    def transitions(
        self, slots: Tensor, weight: Tensor | None = None, index: Tensor | None = None
    ) -> Transition:
        """Return the transitions that start at `slots` [B]; `weight` and `index` are passed on."""
        reward, discount, successor = self.n_step_returns(slots)
        fields = self.storage.fields(torch.cat((slots, successor)))
        rows = len(slots)
        obs: Obs = {name: x[:rows] for name, x in fields.items()}
        next_obs: Obs = {name: x[rows:] for name, x in fields.items() if name != ACTION}
        action = obs.pop(ACTION)
        return Transition(obs, action, reward, discount, next_obs, weight, index)

    def n_step_returns(self, slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (discounted sum of rewards, discount, slot of the successor) of each window, [B] each."""
        storage = self.storage
        if storage.device.type != "cpu":
            return kernels_torch.n_step_returns(
                slots, storage.length, storage.reward, storage.flags, self.gamma_powers, self.final
            )
        reward, discount = torch.empty(len(slots)), torch.empty(len(slots))
        successor = torch.empty_like(slots)
        kernels.n_step_returns(
            slots.numpy(),
            storage.length,
            storage.reward.numpy(),
            storage.flags.numpy(),
            self.gamma_powers.numpy(),
            self.final,
            reward.numpy(),
            discount.numpy(),
            successor.numpy(),
        )
        return reward, discount, successor
