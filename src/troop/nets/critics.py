"""Several critics behind one module."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from troop.nets.network_config import NetworkConfig


class Critics(nn.Module):
    """`count` independent nets over (obs, action); answers [count, B, outputs].

    Their weights lie side by side. Whether a layer is one batched product or one per net is decided by its
    size (nets/products.py): small layers want the former on a CPU, large ones the latter, GPUs the former.
    """

    def __init__(self, inputs: int, shape: NetworkConfig, outputs: int, count: int = 2) -> None:
        super().__init__()
        self.count = count
        self.nets = shape.net(inputs, outputs, copies=count)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """[B, o], [B, a] -> [count, B, outputs]."""
        x = torch.cat((obs, action), -1)
        values: Tensor = self.nets(x.expand(self.count, *x.shape))
        return values
