"""RewardScale: a divisor for rewards that keeps discounted returns in a known range, without centring."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from troop.core.batch import NStep, Rollout


class RewardScale:
    """Tracks the discounted return G of each stream; the divisor is max(std(G), max|G| / `scale_rewards_to`).

    Each env has its own G, and all share one statistic: in the reference implementation's per-task variant
    envs of one task overwrite each other's G.
    """

    def __init__(self, experience: NStep, num_streams: int, device: str) -> None:
        assert experience.scale_rewards_to is not None
        self.gamma, self.max_return = experience.gamma, experience.scale_rewards_to
        self.returns = torch.zeros(num_streams, device=device)  # G of each stream
        self.mean, self.var = torch.zeros((), device=device), torch.ones((), device=device)
        self.count, self.max_abs = torch.zeros((), device=device), torch.zeros((), device=device)

    def add(self, rollout: Rollout) -> None:
        """Update the returns and statistics with new rows; closing rows do not count."""
        streams = rollout.streams.to(self.returns.device)
        for reward, ended, closing in zip(
            rollout.reward, rollout.terminated | rollout.truncated, rollout.closing, strict=True
        ):
            returns = self.gamma * self.returns[streams] + reward
            self._update_statistics(returns[~closing])
            self.returns[streams] = torch.where(ended | closing, 0.0, returns)

    def _update_statistics(self, x: Tensor) -> None:
        if not x.numel():
            return
        self.max_abs = torch.maximum(self.max_abs, x.abs().max())
        total = self.count + x.numel()
        weight, delta = x.numel() / total, x.mean() - self.mean
        var = x.var(correction=0)
        self.var = self.var * (1 - weight) + var * weight + delta.square() * weight * (1 - weight)
        self.mean, self.count = self.mean + delta * weight, total

    def end_streams(self, streams: Tensor | None = None) -> None:
        """Set the returns of these streams (None: all) to 0."""
        self.returns[slice(None) if streams is None else streams.to(self.returns.device)] = 0.0

    @property
    def value(self) -> Tensor:
        """The divisor, at least 1e-8."""
        return torch.maximum(self.var.sqrt() + 1e-8, self.max_abs / self.max_return)

    def state_dict(self) -> dict[str, Any]:
        """Return returns and statistics."""
        return {name: getattr(self, name) for name in ("returns", "mean", "var", "count", "max_abs")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the statistics, and the returns if the number of streams is the same."""
        for name in ("mean", "var", "count", "max_abs"):
            setattr(self, name, state[name].to(self.returns.device))
        if state["returns"].shape == self.returns.shape:
            self.returns.copy_(state["returns"])
