"""Heads of the auxiliary tasks of UNREAL (Jaderberg et al. 2016): pixel control and reward prediction."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

FILTERS = 32  # of the map that the deconvolutions read
REWARD_CLASSES = 3  # zero, positive, negative
FRAMES = 3  # observations from which the next reward is predicted


class PixelControlHead(nn.Module):
    """Q [N, actions, rows, columns] of each cell: a spatial map, deconvolutions with stride 2, dueling.

    A side with an even number of cells has kernels of 4, an odd one of 3: the map for 20x20 cells is 9x9.
    """

    def __init__(self, features: int, actions: int, cells: tuple[int, int]) -> None:
        super().__init__()
        kernel = (4 - cells[0] % 2, 4 - cells[1] % 2)
        self.map = ((cells[0] - kernel[0]) // 2 + 1, (cells[1] - kernel[1]) // 2 + 1)
        self.layer = nn.Linear(features, FILTERS * self.map[0] * self.map[1])
        self.value = nn.ConvTranspose2d(FILTERS, 1, kernel, 2)
        self.advantage = nn.ConvTranspose2d(FILTERS, actions, kernel, 2)

    def forward(self, features: Tensor) -> Tensor:
        """[N, features] -> [N, actions, rows, columns]."""
        x = functional.relu(self.layer(features)).view(len(features), FILTERS, *self.map)
        advantage: Tensor = self.advantage(x)
        q: Tensor = self.value(x) + advantage - advantage.mean(1, keepdim=True)
        return q


class RewardPredictionHead(nn.Module):
    """Logits [N, 3] of a zero, positive or negative reward after three observations."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(FRAMES * features, hidden)
        self.logits = nn.Linear(hidden, REWARD_CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        """[N, 3, features] -> [N, 3]."""
        logits: Tensor = self.logits(torch.relu(self.hidden(features.flatten(1))))
        return logits
