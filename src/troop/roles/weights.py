"""Weights: the newest policy, for whoever asks; newest wins."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from troop.core.remote import readonly


class Weights:
    """Keeps what was published last; its version is the learner's count of updates, and only grows."""

    def __init__(self) -> None:
        self.version = -1
        self.weights: dict[str, Tensor] = {}

    @torch.no_grad()
    def publish(self, updates: int, weights: dict[str, Tensor]) -> None:
        """The policy after this many updates takes the place of the last.

        A learner that went back to a checkpoint counts from there; its policy is still the newest.
        """
        self.version = max(updates, self.version + 1)
        self.weights = {name: x.detach().to("cpu", copy=True) for name, x in weights.items()}

    @readonly
    def latest(self, after: int) -> tuple[int, dict[str, Tensor]] | None:
        """Version and weights, or None for those who have this version.

        Not "a newer one": restored from a checkpoint it may know less than who asks, and is right.
        """
        return None if self.version == after else (self.version, self.weights)

    def state_dict(self) -> dict[str, Any]:
        """Version and weights."""
        return {"version": self.version, "weights": dict(self.weights)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them back."""
        self.version, self.weights = int(state["version"]), dict(state["weights"])
