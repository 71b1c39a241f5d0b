"""Evaluator: returns of the newest policy without exploration, in its own envs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from troop.core.algorithm import Policy
from troop.core.env import VectorEnv
from troop.core.flow import WeightSource
from troop.core.role import Metrics


@torch.no_grad()
def first_episodes(
    env: VectorEnv, policy: Policy, seed: int, max_steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Play one episode in each env without exploration; return (returns, lengths, finished), each [envs].

    Episodes that have not ended after `max_steps` steps, or that an env fault cut short, count as they are
    and are not finished.
    """
    step = env.reset(seed)
    state, no_exploration = policy.initial_state(step.reward.shape[0]), torch.zeros_like(step.reward)
    returns, lengths = torch.zeros_like(step.reward, dtype=torch.float64), torch.zeros_like(step.reward)
    running, finished = torch.ones_like(step.valid), torch.zeros_like(step.valid)
    for _ in range(max_steps):
        output = policy.act(step.obs, state, no_exploration)
        step, state = env.step(output.action), output.state
        running &= step.valid  # a fault has reset the env: its episode counts as it is, unfinished
        returns += torch.where(running, step.reward, 0.0)
        lengths += running
        ended = running & (step.terminated | step.truncated)
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
        policy: Policy,
        weights: WeightSource,
        seed: int,
        max_steps: int,
    ) -> None:
        self.make, self.policy, self.weights = make, policy, weights
        self.seed, self.max_steps, self.version = seed, max_steps, -1

    def step(self) -> Metrics | None:
        """Evaluate the newest policy; None if that version has been evaluated."""
        newest = self.weights.latest(self.version)
        if newest is None:
            return None
        self.version, weights = newest
        self.policy.load_state_dict(weights)
        env = self.make(self.seed)
        try:
            returns, lengths, finished = first_episodes(env, self.policy, self.seed, self.max_steps)
        finally:
            env.close()
        return {
            "eval/return_mean": returns.mean(),
            "eval/return_std": returns.std(correction=0),
            "eval/length": lengths.mean(),
            "eval/episodes": len(returns),
            "eval/unfinished": int((~finished).sum()),
        }
