"""Critics: an ensemble of Q networks, and the reduction of their outputs to one value per row."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from troop.nets.encoder import Trunk
from troop.nets.network_config import NetworkConfig

Reduction = Literal["min", "mean", "first"]


class Critics(nn.Module):
    """`count` independent networks over (obs, action); outputs [count, B, outputs].

    Their weights are stacked. nets/mlp.py chooses between one batched product and one product per network.
    They share the trunk, which reduces image features.
    """

    def __init__(
        self, inputs: int, network: NetworkConfig, outputs: int, count: int = 2, trunk: Trunk | None = None
    ) -> None:
        super().__init__()
        self.count = count
        self.trunk = trunk or Trunk(0, 0)
        self.nets = network.build(inputs - self.trunk.removed, outputs, copies=count)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """[B, o], [B, a] -> [count, B, outputs]."""
        x = torch.cat((self.trunk(obs), action), -1)
        values: Tensor = self.nets(x.expand(self.count, *x.shape))
        return values


class QReduction(nn.Module):
    """Reduce critic outputs [C, B, K], logits over `atoms` or scalars (K = 1), to one value per row."""

    atoms: Tensor | None

    def __init__(self, reduction: Reduction, atoms: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("atoms", atoms, persistent=False)
        self.reduction = reduction

    def forward(self, outputs: Tensor) -> Tensor:
        """[C, B, K] -> [B]."""
        # Not a matrix product: autocast would compute the expectation in bf16.
        values = (
            outputs.squeeze(-1) if self.atoms is None else (outputs.float().softmax(-1) * self.atoms).sum(-1)
        )
        if self.reduction == "min":
            return values.amin(0)
        return values.mean(0) if self.reduction == "mean" else values[0]
