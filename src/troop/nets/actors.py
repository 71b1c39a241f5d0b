"""Actors: observations to actions in [-1, 1]."""

from __future__ import annotations

from torch import Tensor, nn

from troop.nets.network_config import NetworkConfig


class DeterministicActor(nn.Module):
    """An action by tanh; the last layer of an MLP starts near zero."""

    def __init__(self, inputs: int, shape: NetworkConfig, outputs: int, head_std: float = 0.01) -> None:
        super().__init__()
        self.inputs = inputs
        self.net = shape.net(inputs, outputs)
        self.net.start(head_std)

    def forward(self, obs: Tensor) -> Tensor:
        """[B, inputs] -> [B, outputs]."""
        action: Tensor = self.net(obs).tanh()
        return action


class GaussianActor(nn.Module):
    """Mean and log standard deviation of a Gaussian that is squashed by tanh afterwards.

    The log standard deviation is squashed into [low, high] by a tanh of its own, so it has a gradient
    everywhere and starts near the middle. Both heads start near zero, or at it with `head_std` 0.
    """

    def __init__(
        self, inputs: int, shape: NetworkConfig, outputs: int, low: float, high: float, head_std: float = 0.01
    ) -> None:
        super().__init__()
        self.inputs, self.low, self.high = inputs, low, high
        self.net = shape.net(inputs, 2 * outputs)
        self.net.start(head_std)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """[B, inputs] -> mean and log standard deviation, [B, outputs] each."""
        mean, free = self.net(obs).chunk(2, -1)
        return mean, self.low + 0.5 * (self.high - self.low) * (free.tanh() + 1)
