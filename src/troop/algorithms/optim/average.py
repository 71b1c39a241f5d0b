"""AverageActor: an actor whose weights are a moving average."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


class AverageActor(nn.Module):
    """Follows an actor: each `follow` moves its weights by `tau` towards the actor's (Polyak averaging).

    Single updates of a deterministic policy can lose a goal for some hundred updates; their average does not.
    """

    def __init__(self, actor: nn.Module, tau: float) -> None:
        super().__init__()
        self.tau, self.actor = tau, copy.deepcopy(actor).requires_grad_(False)

    @torch.no_grad()
    def follow(self, actor: nn.Module) -> None:
        """Move the weights towards those of `actor`."""
        torch._foreach_lerp_(list(self.actor.parameters()), list(actor.parameters()), self.tau)

    def forward(self, x: Tensor) -> Any:  # noqa: ANN401 - whatever the actor returns
        """Return the outputs of the averaged actor."""
        return self.actor(x)
