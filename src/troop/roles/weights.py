"""Weights: the newest policy, or other net, for whoever asks; newest wins."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from troop.core.flow import WeightSource
from troop.core.remote import Future, call_async, readonly, zero_copy


class Weights:
    """Keeps what was published last; its version is the learner's count of updates, and only grows."""

    def __init__(self, of: str = "policy") -> None:
        self.of = of  # whose weights they are; only a policy's can be acted with
        self.version = -1
        self.weights: dict[str, Tensor] = {}

    @zero_copy
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

        Not "a newer one": restored from a checkpoint it may know less than who asks, and is right; unless it
        knows nothing at all.
        """
        return None if self.version in (after, -1) else (self.version, self.weights)

    def state_dict(self) -> dict[str, Any]:
        """Version and weights."""
        return {"version": self.version, "weights": dict(self.weights)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them back."""
        self.version, self.weights = int(state["version"]), dict(state["weights"])


def load_weights(net: nn.Module, weights: dict[str, Tensor]) -> None:
    """What net.load_state_dict does, in a third of the time: weights come many times a second."""
    own = net.state_dict()
    same = own.keys() == weights.keys() and all(own[name].shape == x.shape for name, x in weights.items())
    if own and same:
        torch._foreach_copy_(list(own.values()), [weights[name] for name in own])
    else:
        net.load_state_dict(weights)  # says what does not fit


class Subscription:
    """Keeps a net at the newest weights of a source: asked ahead, newest wins, nobody waits."""

    def __init__(self, source: WeightSource, net: nn.Module) -> None:
        self.source, self.net, self.version = source, net, -1
        self.longest = 0  # updates by which the net was ever behind
        self._asked: Future[tuple[int, dict[str, Tensor]] | None] | None = None

    def refresh(self) -> int | None:
        """Take newer weights if they are there; by how many updates the net was behind."""
        if self._asked is None:
            self._asked = call_async(self.source.latest, self.version)
        if not self._asked.ready():
            return None
        newest = self._asked.result()
        if newest is None:
            self._asked = call_async(self.source.latest, self.version)
            return None
        before, (self.version, weights) = self.version, newest
        self._asked = call_async(self.source.latest, self.version)
        load_weights(self.net, weights)
        if before < 0:
            return None
        lag = max(0, self.version - before)  # a source that was restored may know less than who asks
        self.longest = max(self.longest, lag)
        return lag
