"""From places in the streams to Transitions: n-step windows cut at ends, stacks of frames put together."""

from __future__ import annotations

import torch
from torch import Tensor

from troop.core.batch import NStep, Transition
from troop.core.env import Obs
from troop.replay.reward_scale import RewardScale
from troop.replay.storage import kernels, kernels_torch
from troop.replay.storage.ring import ACTION, RingStorage


class NStepSampler:
    """Cuts the experience an algorithm wants out of the streams."""

    def __init__(self, streams: RingStorage, experience: NStep) -> None:
        self.streams, self.experience = streams, experience
        # Each power is rounded once, and sums are made in double precision.
        self.powers = experience.gamma ** torch.arange(
            experience.n + 1, dtype=torch.float64, device=streams.device
        )
        self.final = kernels.TERMINATED
        if not experience.bootstrap_on_truncation:
            self.final |= kernels.TRUNCATED
        scaled = experience.scale_rewards_to is not None
        self.scale = RewardScale(experience, streams.streams, str(streams.device)) if scaled else None

    def transitions(
        self, place: Tensor, weight: Tensor | None = None, index: Tensor | None = None
    ) -> Transition:
        """The transitions that start at `place` [B]."""
        reward, discount, successor = self.end_streams(place)
        found = self.streams.fields(torch.cat((place, successor)))
        rows = len(place)
        before: Obs = {name: x[:rows] for name, x in found.items()}
        after: Obs = {name: x[rows:] for name, x in found.items() if name != ACTION}
        action = before.pop(ACTION)
        if self.scale is not None:
            reward = reward / self.scale.value
        return Transition(before, action, reward, discount, after, weight, index)

    def end_streams(self, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(reward, discount, place of the successor) of each window."""
        streams = self.streams
        if streams.device.type != "cpu":
            return kernels_torch.windows(
                place, streams.length, streams.reward, streams.flags, self.powers, self.final
            )
        reward, discount = torch.empty(len(place)), torch.empty(len(place))
        successor = torch.empty_like(place)
        kernels.windows(
            place.numpy(),
            streams.length,
            streams.reward.numpy(),
            streams.flags.numpy(),
            self.powers.numpy(),
            self.final,
            reward.numpy(),
            discount.numpy(),
            successor.numpy(),
        )
        return reward, discount, successor
