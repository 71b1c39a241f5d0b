"""Actor networks: observations to actions in [-1, 1]."""

from __future__ import annotations

from torch import Tensor, nn

from troop.nets.encoder import Trunk
from troop.nets.network_config import NetworkConfig


class DeterministicActor(nn.Module):
    """tanh action; the output layer of an MLP is initialised with standard deviation `output_std`."""

    def __init__(
        self,
        inputs: int,
        network: NetworkConfig,
        outputs: int,
        output_std: float = 0.01,
        trunk: Trunk | None = None,
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.trunk = trunk or Trunk(0, 0)
        self.net = network.build(inputs - self.trunk.removed, outputs)
        self.net.init_output(output_std)

    def preactivation(self, obs: Tensor) -> Tensor:
        """[B, inputs] -> u [B, outputs]; the action is tanh(u)."""
        u: Tensor = self.net(self.trunk(obs))
        return u

    def forward(self, obs: Tensor) -> Tensor:
        """[B, inputs] -> [B, outputs]."""
        return self.preactivation(obs).tanh()


class GaussianActor(nn.Module):
    """Mean and log standard deviation of a Gaussian that the caller squashes by tanh.

    The log standard deviation is mapped into [log_std_min, log_std_max] by a tanh, so that it has a gradient
    everywhere and starts near the middle of the range. `output_std` 0 starts both heads at exactly zero.
    """

    def __init__(
        self,
        inputs: int,
        network: NetworkConfig,
        outputs: int,
        log_std_min: float,
        log_std_max: float,
        output_std: float = 0.01,
        trunk: Trunk | None = None,
    ) -> None:
        super().__init__()
        self.inputs, self.log_std_min, self.log_std_max = inputs, log_std_min, log_std_max
        self.trunk = trunk or Trunk(0, 0)
        self.net = network.build(inputs - self.trunk.removed, 2 * outputs)
        self.net.init_output(output_std)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """[B, inputs] -> mean and log standard deviation, [B, outputs] each."""
        mean, unbounded = self.net(self.trunk(obs)).chunk(2, -1)
        half_range = 0.5 * (self.log_std_max - self.log_std_min)
        return mean, self.log_std_min + half_range * (unbounded.tanh() + 1)
