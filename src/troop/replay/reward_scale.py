"""Reward normalisation: divide rewards so that discounted returns stay in a known range (no centring)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from troop.core.batch import NStep, Rollout


class RewardScale:
    """Follows each stream's discounted return G; `value` = max(std(G), max|G| / reach) is what to divide by.

    One G per env and one statistic over all: the reference's per-task variant lets envs of a task
    overwrite each other's G.
    """

    def __init__(self, experience: NStep, streams: int, device: str) -> None:
        assert experience.scale_rewards_to is not None
        self.gamma, self.reach = experience.gamma, experience.scale_rewards_to
        self.returns = torch.zeros(streams, device=device)
        self.mean, self.var = torch.zeros((), device=device), torch.ones((), device=device)
        self.count, self.largest = torch.zeros((), device=device), torch.zeros((), device=device)

    def add(self, piece: Rollout) -> None:
        """Run the returns over new rows; closing rows are none."""
        streams = piece.streams.to(self.returns.device)
        for reward, ended, closing in zip(
            piece.reward, piece.terminated | piece.truncated, piece.closing, strict=True
        ):
            running = self.gamma * self.returns[streams] + reward
            acted = ~closing
            self._merge(running[acted])
            self.returns[streams] = torch.where(ended | closing, 0.0, running)

    def _merge(self, x: Tensor) -> None:
        if not x.numel():
            return
        self.largest = torch.maximum(self.largest, x.abs().max())
        total = self.count + x.numel()
        share, delta = x.numel() / total, x.mean() - self.mean
        spread = x.var(correction=0)
        self.var = self.var * (1 - share) + spread * share + delta.square() * share * (1 - share)
        self.mean, self.count = self.mean + delta * share, total

    def end_streams(self, streams: Tensor | None = None) -> None:
        """The episodes of these streams, or all, end here."""
        self.returns[slice(None) if streams is None else streams.to(self.returns.device)] = 0.0

    @property
    def value(self) -> Tensor:
        """The divisor, at least 1e-8."""
        return torch.maximum(self.var.sqrt() + 1e-8, self.largest / self.reach)

    def state_dict(self) -> dict[str, Any]:
        """Returns and statistics."""
        return {name: getattr(self, name) for name in ("returns", "mean", "var", "count", "largest")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back the statistics; the returns only if the streams are the same."""
        for name in ("mean", "var", "count", "largest"):
            setattr(self, name, state[name].to(self.returns.device))
        if state["returns"].shape == self.returns.shape:
            self.returns.copy_(state["returns"])
