"""Collector: a policy, an env and a recorder. Not a role but a part of actors and trainers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from troop.core.algorithm import Policy
from troop.core.env import Step, VectorEnv
from troop.core.exploration import Exploration
from troop.core.flow import Recorder
from troop.core.program import derive_seed
from troop.core.role import Metrics
from troop.roles.episodes import EpisodeCounter, take_messages


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


Recorded = TypeVar("Recorded")  # what the recorder returns: Rollout or Trajectory


class Collector(Generic[Recorded]):
    """Acts in its env and records; `send` and `recv` let other work run while the env steps.

    `version` is the version of the policy's weights; the role that loads them sets it.
    """

    def __init__(
        self, env_factory: EnvFactory, policy: Policy, recorder: Recorder[Recorded], exploration: Exploration
    ) -> None:
        self.env_factory, self.policy, self.recorder = env_factory, policy, recorder
        self.exploration = exploration
        self.recreations = 0
        self.notes: list[str] = []
        self.files: dict[str, str] = {}  # texts for the run directory
        self.env, self.last_step = self._make_env()
        rows = self.last_step.reward.shape[0]
        self.state = policy.initial_state(rows)
        self.explore = exploration.initial(rows, self.last_step.reward.device)
        self.env_steps, self.version = 0, -1
        self.wait_s = 0.0  # time that the last `recv` waited for the env
        self._act_s = self._env_s = 0.0  # since the last `recv` returned
        self.actions: list[Tensor] = []  # since the env was made, if they are recorded
        self.episodes = EpisodeCounter(self.last_step)
        self.envs = rows
        self.in_step = False  # between `send` and the end of `recv`: the env's step failed if a role is saved

    def _make_env(self) -> tuple[VectorEnv, Step]:
        seed = derive_seed(self.env_factory.seed, f"world {self.recreations}")
        env = self.env_factory.make(seed)
        step = env.reset(seed)
        take_messages(env, self.notes, self.files)
        return env, step

    def act(self) -> Tensor:
        """Return the policy's action on the last observation, and record it."""
        start = time.perf_counter()
        output = self.policy.act(self.last_step.obs, self.state, self.explore)
        self.recorder.on_action(self.last_step.obs, output, self.state, self.version)
        self.state = output.state
        if self.env_factory.recreate_every:
            self.actions.append(output.action)
        self._act_s += time.perf_counter() - start
        return output.action

    def send(self, action: Tensor | None = None) -> None:
        """Send an action to the env: by default the policy's on the last observation."""
        action = self.act() if action is None else action
        start = time.perf_counter()
        self.in_step = True
        self.env.send(action)
        self._env_s += time.perf_counter() - start

    def recv(self) -> tuple[Sequence[Recorded], Metrics]:
        """Receive the env's step; return what the recorder has completed, and metrics."""
        start = time.perf_counter()
        self.last_step = step = self.env.recv()
        self.wait_s = time.perf_counter() - start
        recorded = list(self.recorder.on_step(step))
        metrics = self.episodes.add(step)
        valid, episodes = int(metrics["count/env_steps"]), "count/episodes" in metrics
        self.env_steps += valid
        if step.faults:
            take_messages(self.env, self.notes, self.files)
        if valid < self.envs or (episodes and step.next_obs is not step.obs):
            self._start_episodes(step.started)
        else:
            self._start_episodes(None)
        recreate_every = self.env_factory.recreate_every
        if recreate_every and len(self.actions) >= recreate_every:
            recorded += self.recorder.flush(step.obs)
            start = time.perf_counter()
            self._recreate_env()
            self._env_s += time.perf_counter() - start
        metrics |= {"count/act_s": self._act_s, "count/env_s": self._env_s + self.wait_s}
        self._act_s = self._env_s = 0.0
        self.in_step = False
        return recorded, metrics

    def _recreate_env(self) -> None:
        self.env.close()
        self.recreations += 1
        self.env, self.last_step = self._make_env()
        self.actions.clear()
        self.episodes.returns.zero_()
        self._start_episodes(torch.ones_like(self.last_step.valid))

    def _start_episodes(self, started: Tensor | None) -> None:
        """Update exploration, and reset the policy's state where `started` [envs] is True (None: nowhere)."""
        self.explore = self.exploration.update(self.explore, started, self.env_steps)
        if started is not None:
            self.state = self.policy.reset_state(self.state, started)

    def close(self) -> None:
        """Close the env."""
        self.env.close()

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to reach the same step of the same episodes.

        If the env's last step has not returned, new episodes follow: the same actions would fail again.
        """
        if self.in_step:
            return {"recreations": self.recreations, "envs": 0, "env_steps": self.env_steps}
        return {
            "actions": torch.stack(self.actions) if self.actions else None,
            "recreations": self.recreations,
            "explore": self.explore,
            "state": self.state,
            "returns": self.episodes.returns,
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
            self.state = self.policy.initial_state(self.envs)
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
        self.explore, self.episodes.returns = state["explore"].to(device), state["returns"].to(device)
        saved = state.get("state")
        if self.state is not None and isinstance(saved, dict):  # a tensor up to 0.1.0: noise of the episode
            self.state = pytree.tree_map(lambda x: x.to(device), saved)
        return True
