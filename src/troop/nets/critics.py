"""Several critics behind one module."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from troop.nets.mlp import MLP


class Critics(nn.Module):
    """`count` independent nets over (obs, action); answers [count, B, outputs].

    Separate nets rather than one batched product: on CPU they are faster from batch 512 up
    (docs/results/learner.md), and two streams of large products keep a GPU busy as well.
    """

    def __init__(
        self, inputs: int, hidden: Sequence[int], outputs: int, count: int = 2, layer_norm: bool = False
    ) -> None:
        super().__init__()
        self.nets = nn.ModuleList(MLP(inputs, hidden, outputs, None, layer_norm) for _ in range(count))

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """[B, o], [B, a] -> [count, B, outputs]."""
        x = torch.cat((obs, action), -1)
        return torch.stack([net(x) for net in self.nets])
