"""Evaluator: newest weights, no exploration, the first episode of each of its own envs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from troop.core.algorithm import Policy
from troop.core.env import VectorEnv
from troop.core.flow import WeightSource
from troop.core.role import Metrics


@torch.no_grad()
def first_episodes(env: VectorEnv, policy: Policy, seed: int, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    """(returns, lengths, finished) of each env's first episode under the policy without exploration."""
    now = env.reset(seed)
    rows = now.reward.shape[0]
    state, still = policy.initial_state(rows), torch.zeros_like(now.reward)
    returns, lengths = torch.zeros_like(now.reward, dtype=torch.float64), torch.zeros_like(now.reward)
    running, finished = torch.ones_like(now.valid), torch.zeros_like(now.valid)
    for _ in range(longest):
        acted = policy.act(now.obs, state, still)
        now, state = env.step(acted.action), acted.state
        running &= now.valid  # a fault has reset the env: its episode stands as it is, unfinished
        returns += torch.where(running, now.reward, 0.0)
        lengths += running
        ended = running & (now.terminated | now.truncated)
        finished |= ended
        running &= ~ended
        if not running.any():
            break
    return returns, lengths, finished


class Evaluator:
    """Makes its envs from the same seed each time, so that two evaluations of one policy are equal."""

    def __init__(
        self,
        make: Callable[[int], VectorEnv],
        policy: torch.nn.Module,
        weights: WeightSource,
        seed: int,
        longest: int,
    ) -> None:
        self.make, self.policy, self.weights = make, policy, weights
        self.seed, self.longest, self.version = seed, longest, -1

    def step(self) -> Metrics | None:
        """One evaluation of the newest policy; None if it was evaluated already."""
        newest = self.weights.latest(self.version)
        if newest is None:
            return None
        self.version, weights = newest
        self.policy.load_state_dict(weights)
        env = self.make(self.seed)
        try:
            returns, lengths, finished = first_episodes(env, self.policy, self.seed, self.longest)  # type: ignore[arg-type]
        finally:
            env.close()
        return {
            "eval/return_mean": returns.mean(),
            "eval/return_std": returns.std(correction=0),
            "eval/length": lengths.mean(),
            "eval/episodes": len(returns),
            "eval/unfinished": int((~finished).sum()),
        }
