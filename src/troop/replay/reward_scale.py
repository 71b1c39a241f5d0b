"""RewardScale: a divisor for rewards that keeps discounted returns in a known range, without centring."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from troop.core.batch import NStep, Rollout, SequenceSpec
from troop.core.peers import NO_PEERS, ExchangingPeers, Moments, Peers


def reward_divisor(returns: Moments, max_return: float) -> Tensor:
    """Return max(std, max|G| / `max_return`) of discounted returns G, at least 1e-8."""
    assert returns.max_abs is not None
    return torch.maximum(returns.var.sqrt() + 1e-8, returns.max_abs / max_return)


class RewardScale:
    """Tracks the discounted return G of each stream; `scale_rewards_to` is the `max_return` of the divisor.

    Each env has its own G, and all share one statistic: in the reference implementation's per-task variant
    envs of one task overwrite each other's G. With `peers` all copies of a learner share it as well.
    """

    def __init__(
        self, experience: NStep | SequenceSpec, num_streams: int, device: str = "cpu", peers: Peers = NO_PEERS
    ) -> None:
        assert experience.scale_rewards_to is not None
        self.gamma, self.max_return, self.peers = experience.gamma, experience.scale_rewards_to, peers
        self.returns = torch.zeros(num_streams, device=device)  # G of each stream
        zero = torch.zeros((), device=device)
        self.moments = Moments(zero, zero, torch.ones_like(zero), zero)  # of G

    def add(self, rollout: Rollout) -> None:
        """Update the returns and statistics with new rows; closing rows do not count."""
        streams = rollout.streams.to(self.returns.device)
        for reward, ended, closing in zip(
            rollout.reward, rollout.terminated | rollout.truncated, rollout.closing, strict=True
        ):
            returns = self.gamma * self.returns[streams] + reward
            self.add_returns(returns[~closing])
            self.returns[streams] = torch.where(ended | closing, 0.0, returns)

    def add_returns(self, x: Tensor) -> None:
        """Update the statistics with discounted returns of any shape."""
        if not x.numel():
            return
        var, mean = torch.var_mean(x, correction=0)
        batch = Moments(x.new_full((), x.numel()), mean, var, x.abs().max())
        self.moments = self.moments.merge(batch)
        if (shared := self.peers.merge_moments("returns", batch, self.moments)) is not None:
            self.moments = shared.to(self.returns.device, torch.float32)

    def exchange(self) -> None:
        """Share the statistics with the other copies of a learner, if they exchange them at fixed times."""
        if isinstance(self.peers, ExchangingPeers):
            self.moments = self.peers.exchange(self.moments).to(self.returns.device, torch.float32)

    def end_streams(self, streams: Tensor | None = None) -> None:
        """Set the returns of these streams (None: all) to 0."""
        self.returns[slice(None) if streams is None else streams.to(self.returns.device)] = 0.0

    @property
    def value(self) -> Tensor:
        """The divisor."""
        return reward_divisor(self.moments, self.max_return)

    def state_dict(self) -> dict[str, Any]:
        """Return returns and statistics."""
        return {"returns": self.returns, **self.moments.as_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the statistics, and the returns if the number of streams is the same."""
        moments = Moments(**{name: x for name, x in state.items() if name != "returns"})
        self.moments = moments.to(self.returns.device)
        if state["returns"].shape == self.returns.shape:
            self.returns.copy_(state["returns"])
