"""Weights: the newest weights of a module, from one learner to many readers."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor, nn

from troop.core.flow import WeightSource
from troop.core.remote import Prefetch, readonly, zero_copy


class Weights:
    """Holds the weights published last; the version is the learner's number of updates.

    A learner restored from a checkpoint publishes smaller versions than before, so that the lag of data is
    always a difference of updates; readers load every version that is not their own. With a `delay` it holds
    those published that many publications before, for experiments with policy lag.
    """

    def __init__(self, module_name: str = "policy", delay: int = 0) -> None:
        self.module_name = module_name  # the module these weights belong to
        self.version = -1
        self.weights: dict[str, Tensor] = {}
        self._published: deque[tuple[int, dict[str, Tensor]]] = deque(maxlen=delay + 1)

    @zero_copy
    @torch.no_grad()
    def publish(self, updates: int, weights: dict[str, Tensor]) -> None:
        """Replace the weights by a copy of `weights`, those after `updates` updates."""
        copied = {name: x.detach().to("cpu", copy=True) for name, x in weights.items()}
        self._published.append((updates, copied))
        self.version, self.weights = self._published[0]

    @readonly
    def latest(self, after: int) -> tuple[int, dict[str, Tensor]] | None:
        """Return version and weights; None if the version is `after` or nothing was published.

        Returns the current version even if it is older than the caller's: after a restore this role is
        authoritative.
        """
        return None if self.version in (after, -1) else (self.version, self.weights)

    def state_dict(self) -> dict[str, Any]:
        """Return version and weights."""
        return {"version": self.version, "weights": dict(self.weights)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.version, self.weights = int(state["version"]), dict(state["weights"])
        self._published.clear()


def load_weights(module: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copy `weights` into `module`, as `load_state_dict` does in three times the time."""
    own = module.state_dict()
    same = own.keys() == weights.keys() and all(own[name].shape == x.shape for name, x in weights.items())
    if own and same:
        torch._foreach_copy_(list(own.values()), [weights[name] for name in own])
    else:
        module.load_state_dict(weights)  # raises an error that names the mismatch


class WeightReader:
    """Keeps a module at the newest weights of a source, with one request always in flight."""

    def __init__(self, source: WeightSource, module: nn.Module) -> None:
        self.module, self.version = module, -1
        self.max_lag = 0  # the largest number of updates by which the module was behind
        self._latest = Prefetch(source.latest)

    def refresh(self) -> int | None:
        """Load newer weights if they have arrived; return by how many updates the module was behind.

        None if nothing was loaded, or if these are the first weights.
        """
        self._latest.fill(self.version)
        newest = self._latest.poll()
        if newest is None:
            self._latest.fill(self.version)
            return None
        previous, (self.version, weights) = self.version, newest
        self._latest.fill(self.version)
        load_weights(self.module, weights)
        if previous < 0:
            return None
        lag = max(0, self.version - previous)  # a restored source may return an older version
        self.max_lag = max(self.max_lag, lag)
        return lag
