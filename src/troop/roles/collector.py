"""Collector: a policy, an env and a recorder. Not a role but a part of actors and trainers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from troop.core.algorithm import Policy
from troop.core.batch import Rollout
from troop.core.env import Step, VectorEnv
from troop.core.exploration import Exploration
from troop.core.flow import Recorder
from troop.core.program import derive_seed
from troop.core.role import Metrics


@dataclass(frozen=True)
class EnvFactory:
    """Makes the env, again every `recreate_every` vector steps.

    The state of a simulator cannot be saved. It is restored by making the env from its seed and replaying the
    recorded actions; recreating the env keeps that record short. With `recreate_every` 0 no actions are
    recorded, and a resumed run starts new episodes.
    """

    make: Callable[[int], VectorEnv]
    seed: int
    recreate_every: int = 0


class Collector:
    """Acts in its env and returns rollouts; `send` and `recv` let other work run while the env steps."""

    def __init__(
        self, env_factory: EnvFactory, policy: Policy, recorder: Recorder, exploration: Exploration
    ) -> None:
        self.env_factory, self.policy, self.recorder = env_factory, policy, recorder
        self.exploration = exploration
        self.recreations = 0
        self.env, self.last_step = self._make_env()
        rows = self.last_step.reward.shape[0]
        self.state = policy.initial_state(rows)
        self.explore = exploration.initial(rows, self.last_step.reward.device)
        self.env_steps = 0
        self.actions: list[Tensor] = []  # since the env was made, if they are recorded
        self.returns = torch.zeros_like(self.last_step.reward)  # of the current episodes
        self.envs = rows

    def _make_env(self) -> tuple[VectorEnv, Step]:
        seed = derive_seed(self.env_factory.seed, f"world {self.recreations}")
        env = self.env_factory.make(seed)
        return env, env.reset(seed)

    def act(self) -> Tensor:
        """Return the policy's action on the last observation, and record it."""
        output = self.policy.act(self.last_step.obs, self.state, self.explore)
        self.state = output.state
        self.recorder.on_action(self.last_step.obs, output)
        if self.env_factory.recreate_every:
            self.actions.append(output.action)
        return output.action

    def send(self) -> None:
        """Send the policy's action on the last observation to the env."""
        self.env.send(self.act())

    def recv(self) -> tuple[list[Rollout], Metrics]:
        """Receive the env's step; return the completed rollouts and metrics."""
        self.last_step = step = self.env.recv()
        rollouts = self.recorder.on_step(step)
        valid = _count_true(step.valid)
        self.env_steps += valid
        metrics: Metrics = {"count/env_steps": valid}
        if step.faults:
            metrics["count/env_faults"] = step.faults
            self.returns[~step.valid] = 0.0
        self.returns += step.reward
        ended = step.terminated | step.truncated
        started = ended | ~step.valid if step.faults else None
        if episodes := _count_true(ended):
            metrics |= {"train/return": self.returns[ended].mean(), "count/episodes": episodes}
            self.returns[ended] = 0.0
            started = ended if started is None else started
        self.explore = self.exploration.update(self.explore, started, self.env_steps)
        recreate_every = self.env_factory.recreate_every
        if recreate_every and len(self.actions) >= recreate_every:
            rollouts += self.recorder.flush(step.obs)
            self._recreate_env()
        return rollouts, metrics

    def _recreate_env(self) -> None:
        self.env.close()
        self.recreations += 1
        self.env, self.last_step = self._make_env()
        self.actions.clear()
        self.returns.zero_()
        started = torch.ones_like(self.last_step.valid)
        self.explore = self.exploration.update(self.explore, started, self.env_steps)

    def close(self) -> None:
        """Close the env."""
        self.env.close()

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to reach the same step of the same episodes."""
        return {
            "actions": torch.stack(self.actions) if self.actions else None,
            "recreations": self.recreations,
            "explore": self.explore,
            "returns": self.returns,
            "obs": dict(self.last_step.obs),
            "envs": self.envs,
            "env_steps": self.env_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Repeat the recorded actions; return False if they led elsewhere and new episodes began."""
        self.recreations, self.env_steps = int(state["recreations"]), int(state.get("env_steps", 0))
        if int(state["envs"]) != self.envs or not self.env_factory.recreate_every:
            self.recreations += 1  # another seed, so that the old episodes are not repeated
            self.env.close()
            self.env, self.last_step = self._make_env()
            return False
        self.env.close()
        self.env, self.last_step = self._make_env()
        device = self.explore.device
        actions = state["actions"]
        self.actions = [] if actions is None else list(actions.to(device).unbind(0))
        for action in self.actions:
            self.last_step = self.env.step(action)
        if not all(torch.equal(x, state["obs"][name].to(device)) for name, x in self.last_step.obs.items()):
            self._recreate_env()
            return False
        self.explore, self.returns = state["explore"].to(device), state["returns"].to(device)
        return True


def _count_true(mask: Tensor) -> int:
    """Count the true elements; for small tensors on the host NumPy is ten times faster than torch."""
    return int(np.count_nonzero(mask.numpy() if mask.is_cpu else mask.cpu().numpy()))
