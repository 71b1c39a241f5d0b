"""EnvRunner: steps envs whose actions an inference server chooses (SEED RL); imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from troop.core.env import EnvConfig
from troop.core.numpy_view import make_numpy_env
from troop.core.program import derive_seed
from troop.core.remote import Future, call_async
from troop.core.role import Metrics
from troop.roles.episodes import EpisodeCounter, take_messages
from troop.roles.runner_step import RunnerStep

if TYPE_CHECKING:  # it imports torch
    from troop.roles.inference_server import InferenceServer


class EnvGroup:
    """Envs that step together, and the request for their next actions."""

    def __init__(self, config: EnvConfig, seed: int, first: int, run: int) -> None:
        self.env = make_numpy_env(config, seed)
        self.last_step = self.env.reset(seed)
        self.ids = np.arange(first, first + config.envs)
        self.runs = np.full(config.envs, run)
        self.episodes = EpisodeCounter(self.last_step)
        self.request: Future[np.ndarray | None] | None = None


class EnvRunner:
    """Steps one group of envs per `step`, in turn: while one group steps, the server acts for the other.

    It holds no network and no state of a policy. Unless its envs need torch, its process never imports it.
    """

    kind = "acting"
    light = True  # see `Node.light`
    restart_fresh = True  # a restarted runner starts new episodes

    def __init__(
        self,
        name: str,
        group_env: EnvConfig,
        groups: int,
        seed: int,
        server: InferenceServer,
        first: int,
    ) -> None:
        self.name, self.server = name, server
        self.notes: list[str] = []
        self.files: dict[str, str] = {}  # texts for the run directory
        self._group_env, self._groups, self._seed, self._first = group_env, groups, seed, first
        self.groups: list[EnvGroup] = []
        self._turn = 0

    def step(self) -> Metrics | None:
        """Step the next group whose actions have arrived; None if there is none."""
        if not self.groups:
            self._begin()
        for _ in self.groups:
            group = self.groups[self._turn]
            self._turn = (self._turn + 1) % len(self.groups)
            request = group.request or self._ask(group)
            if request.ready():
                group.request, action = None, request.result()
                if action is not None:  # otherwise the learner is behind: ask again in a later step
                    return self._advance(group, action)
        return None

    def _begin(self) -> None:
        """Make the envs; those of a restarted runner do not repeat its first episodes."""
        envs = self._group_env.envs
        run = self.server.register(self._first, self._groups * envs)
        for number in range(self._groups):
            seed = derive_seed(self._seed, f"group {number} run {run}")
            group = EnvGroup(self._group_env, seed, self._first + number * envs, run)
            take_messages(group.env, self.notes, self.files)
            self.groups.append(group)
        obs = self.groups[0].last_step.obs
        self.server.check_observations(self.name, {k: (x.dtype.name, x.shape[1:]) for k, x in obs.items()})

    def _ask(self, group: EnvGroup) -> Future[np.ndarray | None]:
        group.request = call_async(self.server.act, group.ids, group.runs, RunnerStep.of(group.last_step))
        return group.request

    def _advance(self, group: EnvGroup, action: np.ndarray) -> Metrics:
        group.last_step = step = group.env.step(action)
        self._ask(group)
        metrics = group.episodes.add(step)
        if step.faults:
            take_messages(group.env, self.notes, self.files)
        return metrics

    def close(self) -> None:
        """Close the envs."""
        for group in self.groups:
            group.env.close()
