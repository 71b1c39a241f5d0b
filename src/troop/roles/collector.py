"""Collector: policy x env x recorder. Not a role: a part of whoever acts."""

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
    """How to make the env, and how long its actions are remembered so that it can be made again.

    A simulator's state cannot be saved. It is restored by making the env from its seed and playing the
    same actions again; so that this stays short, the env is made anew every `recreate_every` vector steps
    (0: never, and a resumed run starts new episodes).
    """

    make: Callable[[int], VectorEnv]
    seed: int
    recreate_every: int = 0


class Collector:
    """Acts in its env and hands over rows; `send` and `recv` let other work happen while the env steps."""

    def __init__(
        self, world: EnvFactory, policy: Policy, recorder: Recorder, exploration: Exploration
    ) -> None:
        self.world, self.policy, self.recorder, self.exploration = world, policy, recorder, exploration
        self.recreations = 0
        self.env, self.now = self._world_made()
        rows = self.now.reward.shape[0]
        self.state = policy.initial_state(rows)
        self.explore = exploration.begin(rows, self.now.reward.device)
        self.env_steps = 0
        self.actions: list[Tensor] = []
        self.returns = torch.zeros_like(self.now.reward)
        self.envs = rows

    def _world_made(self) -> tuple[VectorEnv, Step]:
        seed = derive_seed(self.world.seed, f"world {self.recreations}")
        env = self.world.make(seed)
        return env, env.reset(seed)

    def act(self) -> Tensor:
        """Act on what the env last showed: the action to send."""
        acted = self.policy.act(self.now.obs, self.state, self.explore)
        self.state = acted.state
        self.recorder.on_action(self.now.obs, acted)
        if self.world.recreate_every:
            self.actions.append(acted.action)
        return acted.action

    def send(self) -> None:
        """Act on what the env last showed and send it off."""
        self.env.send(self.act())

    def recv(self) -> tuple[list[Rollout], Metrics]:
        """Take the env's answer: pieces of experience, and what is to be reported."""
        self.now = step = self.env.recv()
        pieces = self.recorder.on_step(step)
        acted = _count(step.valid)
        self.env_steps += acted
        metrics: Metrics = {"count/env_steps": acted}
        if step.faults:
            metrics["count/env_faults"] = step.faults
            self.returns[~step.valid] = 0.0
        self.returns += step.reward
        ended = step.terminated | step.truncated
        begun = ended | ~step.valid if step.faults else None
        if episodes := _count(ended):
            metrics |= {"train/return": self.returns[ended].mean(), "count/episodes": episodes}
            self.returns[ended] = 0.0
            begun = ended if begun is None else begun
        self.explore = self.exploration.at(self.explore, begun, self.env_steps)
        if self.world.recreate_every and len(self.actions) >= self.world.recreate_every:
            pieces += self.recorder.flush(step.obs)
            self._renew()
        return pieces, metrics

    def _renew(self) -> None:
        self.env.close()
        self.recreations += 1
        self.env, self.now = self._world_made()
        self.actions.clear()
        self.returns.zero_()
        self.explore = self.exploration.at(self.explore, torch.ones_like(self.now.valid), self.env_steps)

    def close(self) -> None:
        """Let the env go."""
        self.env.close()

    def state_dict(self) -> dict[str, Any]:
        """What is needed to stand at the same point of the same episodes."""
        return {
            "actions": torch.stack(self.actions) if self.actions else None,
            "recreations": self.recreations,
            "explore": self.explore,
            "returns": self.returns,
            "obs": dict(self.now.obs),
            "envs": self.envs,
            "env_steps": self.env_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Play the same actions again; False if that did not lead back, and new episodes began instead."""
        self.recreations, self.env_steps = int(state["recreations"]), int(state.get("env_steps", 0))
        if int(state["envs"]) != self.envs or not self.world.recreate_every:
            self.recreations += 1  # a fresh seed: the old episodes are not to be seen twice
            self.env.close()
            self.env, self.now = self._world_made()
            return False
        self.env.close()
        self.env, self.now = self._world_made()
        self.actions = (
            [] if state["actions"] is None else list(state["actions"].to(self.explore.device).unbind(0))
        )
        for action in self.actions:
            self.now = self.env.step(action)
        device = self.explore.device
        if not all(torch.equal(x, state["obs"][name].to(device)) for name, x in self.now.obs.items()):
            self._renew()
            return False
        self.explore, self.returns = state["explore"].to(device), state["returns"].to(device)
        return True


def _count(mask: Tensor) -> int:
    """How many are true; of a few on the host NumPy knows ten times sooner."""
    return int(np.count_nonzero(mask.numpy() if mask.is_cpu else mask.cpu().numpy()))
