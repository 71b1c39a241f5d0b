"""Evaluator: returns of the newest policy in its own envs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from troop.core.algorithm import Policy
from troop.core.env import VectorEnv
from troop.core.flow import WeightSource
from troop.core.role import Metrics
from troop.roles.episodes import take_messages

OnStep = Callable[[int, Tensor], None]
"""Called after each vector step with its number, from 1, and the episodes that still run, bool [envs]."""


def first_episodes(
    env: VectorEnv,
    policy: Policy,
    seed: int,
    max_steps: int,
    explore: float = 0.0,
    on_step: OnStep = lambda step, running: None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Play one episode in each env; return (returns, lengths, finished), each [envs].

    Episodes that have not ended after `max_steps` steps, or that an env fault cut short, count as they are
    and are not finished. Random numbers of exploration come from `seed` and leave the global generators as
    they are.
    """
    if not explore:
        return _play(env, policy, seed, max_steps, explore, on_step)
    gpus = {parameter.device.index for parameter in policy.parameters() if parameter.is_cuda}
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(seed)
        return _play(env, policy, seed, max_steps, explore, on_step)


@torch.no_grad()
def _play(
    env: VectorEnv, policy: Policy, seed: int, max_steps: int, explore: float, on_step: OnStep
) -> tuple[Tensor, Tensor, Tensor]:
    step = env.reset(seed)
    state, explore_rows = policy.initial_state(step.reward.shape[0]), torch.full_like(step.reward, explore)
    returns, lengths = torch.zeros_like(step.reward, dtype=torch.float64), torch.zeros_like(step.reward)
    running, finished = torch.ones_like(step.valid), torch.zeros_like(step.valid)
    for number in range(1, max_steps + 1):
        output = policy.act(step.obs, state, explore_rows)
        step, state = env.step(output.action), output.state
        if not step.valid.all():  # first observations of episodes, which only count for the policy's state
            state = policy.reset_state(state, step.started)
        running &= step.valid  # a fault has reset the env: its episode counts as it is, unfinished
        returns += torch.where(running, step.reward, 0.0)
        lengths += running
        ended = running & (step.terminated | step.truncated)
        finished |= ended
        running &= ~ended
        on_step(number, running)
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
        explore: float = 0.0,
    ) -> None:
        self.make, self.policy, self.weights = make, policy, weights
        self.seed, self.max_steps, self.explore, self.version = seed, max_steps, explore, -1
        self.notes: list[str] = []
        self.files: dict[str, str] = {}

    def step(self) -> Metrics | None:
        """Evaluate the newest policy; None if that version has been evaluated."""
        newest = self.weights.latest(self.version)
        if newest is None:
            return None
        self.version, weights = newest
        self.policy.load_state_dict(weights)
        env = self.make(self.seed)
        try:
            returns, lengths, finished = first_episodes(
                env, self.policy, self.seed, self.max_steps, self.explore
            )
        finally:
            take_messages(env, self.notes, self.files)
            env.close()
        return {
            "eval/return_mean": returns.mean(),
            "eval/return_std": returns.std(correction=0),
            "eval/length": lengths.mean(),
            "eval/episodes": len(returns),
            "eval/unfinished": int((~finished).sum()),
        }
