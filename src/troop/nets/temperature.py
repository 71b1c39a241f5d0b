"""Temperature: the weight of the entropy in maximum-entropy RL."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Temperature(nn.Module):
    """alpha, parameterised by its logarithm so that it stays positive."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(alpha)))

    def forward(self) -> Tensor:
        """Return alpha."""
        return self.log_alpha.exp()
