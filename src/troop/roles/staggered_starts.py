"""StaggeredStarts: the first episodes of a vector env end at different times."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from troop.core.env import EnvSpec, Obs, Step, VectorEnv


@dataclass(frozen=True)
class StaggeredMake:
    """Makes an env whose first episodes are truncated at random times."""

    make: Callable[[int], VectorEnv]

    def __call__(self, seed: int) -> VectorEnv:
        """Make the env and wrap it."""
        return StaggeredStarts(self.make(seed), seed)


class StaggeredStarts:
    """Truncates the first episode of each env at a time drawn uniformly from the time limit.

    Envs whose episodes only end at the time limit would otherwise be in the same phase for ever, and each
    rollout would show only one part of an episode. A truncation is that of a time limit: the final
    observation is `next_obs`, and values are bootstrapped from it.
    """

    def __init__(self, env: VectorEnv, seed: int) -> None:
        self.env = env
        self.spec: EnvSpec = env.spec
        self.notes: list[str] = getattr(env, "notes", [])
        self.files: dict[str, str] = getattr(env, "files", {})
        limit, generator = self.spec.episode_limit or 0, torch.Generator().manual_seed(seed)
        # One time from each of as many equal parts of the limit as there are envs, in random order.
        part = torch.randperm(self.spec.envs, generator=generator)
        part = part + torch.rand(self.spec.envs, generator=generator)
        self.due = (part * limit / self.spec.envs).long()
        self.waiting = torch.full((self.spec.envs,), limit > 0)  # for their truncation
        self.steps = 0

    def reset(self, seed: int) -> Step:
        """Start a new episode in every env."""
        self.steps = 0
        return self.env.reset(seed)

    def send(self, action: Tensor) -> None:
        """Start a step."""
        self.env.send(action)

    def recv(self) -> Step:
        """Return the step; truncate the episodes that are due."""
        step = self.env.recv()
        self.steps += 1
        return step if not self.waiting.any() else self._stagger(step)

    def _stagger(self, step: Step) -> Step:
        ended = (step.terminated | step.truncated).cpu()
        self.waiting &= ~ended  # an episode that ends by itself has its own time
        if bool(ended.any()) or not bool(step.valid.all()):
            return step  # a backend that resets in the next step has not yet reset these envs
        due = self.waiting & (self.due <= self.steps)
        if not bool(due.any()):
            return step
        self.waiting &= ~due
        rows = due.nonzero().squeeze(1)
        first, obs = self.env.restart(rows), {}
        for name, value in step.obs.items():
            obs[name] = value.clone()
            obs[name][rows.to(value.device)] = first[name].to(value.dtype)
        return dataclasses.replace(step, obs=obs, truncated=due.to(step.truncated.device))

    def step(self, action: Tensor) -> Step:
        """`send` followed by `recv`."""
        self.send(action)
        return self.recv()

    def restart(self, rows: Tensor) -> Obs:
        """Start new episodes in the envs `rows`."""
        return self.env.restart(rows)

    def close(self) -> None:
        """Close the env."""
        self.env.close()
